"""scratch.py PROGRAM [PYTHON]: models that no folder began with, written by PROGRAM (sherd) and read by `transformers`.

For each case of tests/engine/huggingface/scratch.json, which has every row of docs/models.md's table: PROGRAM trains
the model from random weights and exports it. Checked: config.json names the case's family; `transformers` finds every
tensor that it wants and no other; its logits give the loss that PROGRAM computes; and log-likelihoods of single tokens
are those of `sherd score`.

PYTHON has another version of `transformers`: its logits are the same within a few roundings. Needs `./dev deps oracle`.
"""
import json
import pathlib
import subprocess
import sys
import tempfile

import torch
import transformers

from logits import logits_of

HERE = pathlib.Path(__file__).resolve().parent
CASES = json.loads((HERE.parents[1] / "engine" / "huggingface" / "scratch.json").read_text())
SIZES = dict(num_layers=4, hidden_size=64, num_attention_heads=4, num_kv_heads=2, vocab_size=56, max_seq_length=64,
             init_std=0.3)
TOKENS = [(3 * t * t + 7 * t) % 56 for t in range(33)]
program, others = sys.argv[1], sys.argv[2:]


def sherd(*words):
    done = subprocess.run([program, *map(str, words)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert done.returncode == 0, (words, done.stderr)
    return done.stdout


def export(case, place):
    """Trains and exports the case; what `sherd score` says of its tokens."""
    (place / "many.bin").write_bytes(b"".join(t.to_bytes(2, "little") for t in TOKENS) * 8)
    model = SIZES | case["model"]
    text = ", ".join(f"{key}: {json.dumps(value)}" for key, value in model.items())
    (place / "r.yaml").write_text(f"""
model: {{{text}}}
data: {{path: {place}/many.bin, format: bin, validation_fraction: 0}}
training: {{seq_length: 32, global_batch_size: 2, max_steps: 3}}
optimizer: {{lr: 0.05}}
run: {{output_dir: {place}/run}}
checkpoint: {{interval: 3}}
metrics: {{tensorboard: false}}
""")
    out = sherd("train", place / "r.yaml")
    assert "won't write" not in out, out
    sherd("export", place / "run", "--to-hf", place / "hf")
    questions = "".join(json.dumps({"context": TOKENS[:t], "continuation": [TOKENS[t]]}) + "\n"
                        for t in range(1, len(TOKENS)))
    (place / "q.jsonl").write_text(questions)
    lines = sherd("score", place / "run", "--questions", place / "q.jsonl").splitlines()
    return torch.tensor([json.loads(line)["log_likelihood"] for line in lines], dtype=torch.float64)


def of_tokens(logits):
    """Log-likelihoods of the tokens after the first."""
    return torch.log_softmax(logits, -1)[torch.arange(32), torch.tensor(TOKENS[1:])]


def rms(values):
    return values.square().mean().sqrt().item()


def check(case, place):
    ours = export(case, place)
    config = json.loads((place / "hf" / "config.json").read_text())
    assert config["model_type"] == case["type"], (case["name"], config["model_type"])
    model, info = transformers.AutoModelForCausalLM.from_pretrained(
        place / "hf", dtype=torch.float32, attn_implementation="eager", output_loading_info=True)
    missing = {key: value for key, value in info.items() if value and key != "error_msgs"}
    assert not missing, (case["name"], missing)
    logits = logits_of(model.eval(), TOKENS)
    # In double precision, so that only our roundings count. Theirs in f32 say how many these weights make.
    exact = of_tokens(logits_of(model.double(), TOKENS))
    difference, rounding = rms(ours - exact), rms(of_tokens(logits) - exact)
    spread = (exact.max() - exact.min()).item()
    assert difference < max(1e-6, 4 * rounding) and spread > 0.5, (case["name"], difference, rounding, spread)
    print(f"{case['name']}: {config['model_type']}, log-likelihoods differ by {difference:.1e} of {spread:.1f} "
          f"(transformers in f32 by {rounding:.1e})", flush=True)
    return logits


def main():
    failed = []
    with tempfile.TemporaryDirectory() as scratch:
        logits = {}
        for case in CASES:
            place = pathlib.Path(scratch, case["name"])
            place.mkdir()
            try:
                logits[place / "hf"] = check(case, place)
            except (AssertionError, Exception) as problem:  # all of them are worth knowing
                failed.append(case["name"])
                print(f"{case['name']}: {type(problem).__name__} {str(problem)[:400]}", flush=True)
        for python in others:
            command = [python, HERE / "logits.py", json.dumps(TOKENS), *logits]
            answer = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout)
            for (folder, ours), theirs in zip(logits.items(), answer["logits"], strict=True):
                difference = (ours - torch.tensor(theirs, dtype=torch.float64)).abs().max().item()
                print(f"{folder.parent.name}: transformers {answer['version']} differs by {difference:.1e}", flush=True)
                assert difference < 1e-5, folder
    print(f"{len(CASES) - len(failed)} of {len(CASES)} are what they should be")
    sys.exit(len(failed) > 0)


main()
