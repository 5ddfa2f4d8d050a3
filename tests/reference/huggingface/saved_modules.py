"""saved_modules.py PROGRAM [NAME...]: adapters with modules that are trained whole, written by PROGRAM (sherd), in PEFT.

For each model of folders.py (or those NAMED) and each module that can be trained whole, and all norms with embedding and
head together: PROGRAM trains an adapter and the modules for some steps and exports PEFT's files. Checked: PEFT loads
them, trains whole these modules and no others, and log-likelihoods of the row of tokens are those of `sherd score`, for
the run and for the adapter's folder.

Needs `./dev deps oracle`.
"""
import json
import pathlib
import subprocess
import sys
import tempfile

import peft
import torch
import transformers

arguments, sys.argv[1:] = sys.argv[1:], ["--check"]
import folders  # noqa: E402: its main() checks the committed values first

TOKENS = [(3 * t * t + 7 * t) % 56 for t in range(folders.TOKENS)]
NORMS = ["norm1", "norm2", "attention.norm", "mlp.norm", "attention.query_norm", "attention.key_norm", "final_norm"]
SETS = [[name] for name in NORMS] + [["embedding.token"], ["head"], ["embedding.token", "head"],
                                     ["embedding.token", "embedding.position"], ["attention.qkv"], ["mlp.up"],
                                     ["attention.output", "mlp.down"],
                                     ["norm1", "final_norm", "embedding.token", "head"]]
program = arguments[0]


def sherd(*words):
    return subprocess.run([program, *map(str, words)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def saved_in(model):
    """What PEFT trains whole, by the names of the modules in the model."""
    end = ".modules_to_save.default"
    return {name.removesuffix(end) for name, _ in model.named_modules() if name.endswith(end)}


def likelihoods(place, model):
    lines = sherd("score", model, "--questions", place / "q.jsonl").stdout.splitlines()
    return torch.tensor([json.loads(line)["log_likelihood"] for line in lines], dtype=torch.float64)


def check(name, place, modules, number):
    """None where the model hasn't these modules."""
    target = "mlp.down" if "attention.output" not in modules else "attention.qkv"
    (place / "r.yaml").write_text(f"""
model: {{from: {place}/model}}
adapter: {{type: lora, rank: 2, alpha: 3, targets: [{target}], modules_to_save: {json.dumps(modules)}}}
data: {{path: {place}/many.bin, format: bin, validation_fraction: 0}}
training: {{seq_length: 16, global_batch_size: 2, max_steps: 3}}
optimizer: {{lr: 0.05}}
run: {{output_dir: {place}/run{number}}}
checkpoint: {{interval: 3}}
metrics: {{tensorboard: false}}
""")
    done = sherd("train", place / "r.yaml")
    if "names no whole module" in done.stderr:
        return None
    assert done.returncode == 0, done.stderr
    run, out = place / f"run{number}", place / f"adapter{number}"
    done = sherd("export", run, "--to-hf", out)
    assert done.returncode == 0, done.stderr
    base = transformers.AutoModelForCausalLM.from_pretrained(place / "model", dtype=torch.float32,
                                                             attn_implementation="eager")
    model = peft.PeftModel.from_pretrained(base, out).eval()
    with torch.no_grad():
        rows = torch.log_softmax(model(torch.tensor([TOKENS])).logits[0].double(), -1)
    theirs = rows[torch.arange(len(TOKENS) - 1), torch.tensor(TOKENS[1:])]
    ours, again = likelihoods(place, run), likelihoods(place, out)
    difference, second = (ours - theirs).abs().max().item(), (ours - again).abs().max().item()
    assert difference < 2e-5 and second < 2e-5, (name, modules, difference, second)
    stored = {key.removeprefix("base_model.model.").rsplit(".", 1)[0]
              for key in json.loads(header_of(out / "adapter_model.safetensors")) if ".lora_" not in key}
    wrapped = {each.removeprefix("base_model.model.") for each in saved_in(model)}
    unknown = {each for each in wrapped if not any(one == each or one.startswith(each + ".") for one in stored)}
    assert not unknown, (name, modules, unknown)
    return max(difference, second)


def header_of(path):
    data = path.read_bytes()
    header = json.loads(data[8:8 + int.from_bytes(data[:8], "little")])
    header.pop("__metadata__", None)
    return json.dumps(header)


def main():
    failed = checked = 0
    for name, config in folders.MODELS.items():
        if arguments[1:] and name not in arguments[1:]:
            continue
        with tempfile.TemporaryDirectory() as scratch:
            place = pathlib.Path(scratch)
            model = transformers.AutoModelForCausalLM.from_config(config).to(torch.float32)
            for tensor, parameter in model.named_parameters():
                folders.fill("embed_out.weight" if config.model_type == "gpt_neox" and tensor == "lm_head.weight"
                             else tensor, parameter)
            model.save_pretrained(place / "model")
            (place / "many.bin").write_bytes(b"".join(t.to_bytes(2, "little") for t in TOKENS) * 8)
            (place / "q.jsonl").write_text("".join(
                json.dumps({"context": TOKENS[:t], "continuation": [TOKENS[t]]}) + "\n" for t in range(1, len(TOKENS))))
            worst = 0.0
            for number, modules in enumerate(SETS):
                try:
                    difference = check(name, place, modules, number)
                except Exception as problem:  # all of them are worth knowing
                    failed += 1
                    print(f"{name} {modules}: {type(problem).__name__} {str(problem)[:300]}", flush=True)
                    continue
                if difference is not None:
                    checked, worst = checked + 1, max(worst, difference)
            print(f"{name}: within {worst:.1e}", flush=True)
    print(f"{checked} sets of modules are what they should be, {failed} are not")
    sys.exit(failed > 0)


main()
