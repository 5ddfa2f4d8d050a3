"""exports.py PROGRAM [PYTHON...]: every model of folders.py is saved by `transformers`, read by PROGRAM (sherd), trained
for a step at stage 3 on 2 ranks, exported in f32, and loaded by `transformers` again (of a model of several parts, its
text part). Checked: a step that learns nothing leaves the logits as they were, bit for bit; one that learns gives
other logits, and sherd's own loss of its checkpoint is that of the exported folder.

PYTHON has another version of `transformers` (4.57.6, say). It loads every exported folder that it knows, too, and computes the same
logits within a few roundings; what it saves is read and exported by sherd, and has the same logits here.

Needs `./dev deps oracle`.
"""
import json
import pathlib
import subprocess
import sys
import tempfile

import torch
import transformers

from logits import load, logits_of

HERE = pathlib.Path(__file__).resolve().parent
program, other_python = sys.argv[1], sys.argv[2:]
sys.argv[1:] = ["--check"]
import folders  # noqa: E402: its main() checks the committed values first

# transformers 5 calls Granite 4's layers "full_attention"; 4 takes "attention" alone.
ONLY_SINCE_5 = {"ministral3", "mistral3_whole", "internlm3", "granite4"}
TOKENS = [(3 * t * t + 7 * t) % 56 for t in range(folders.TOKENS)]


def sherd(*words):
    return subprocess.run([program, *map(str, words)], check=True, stdout=subprocess.PIPE, text=True).stdout


def logits_in(folder):
    return logits_of(load(folder), TOKENS)


def step(model, place, lr):
    """One step from the folder `model`: its checkpoint and the folder that is exported from it."""
    (place / "r.yaml").write_text(f"""
model: {{from: {model}}}
data: {{path: {place}/many.bin, format: bin, validation_fraction: 0}}
training: {{seq_length: 16, global_batch_size: 4, max_steps: 1}}
zero_optimization: {{stage: 3}}
optimizer: {{type: sgd, lr: {lr}, weight_decay: 0}}
run: {{output_dir: {model}-run{lr}}}
checkpoint: {{init_from: {model}, interval: 1}}
""")
    sherd("train", place / "r.yaml", "--ranks", 2)
    checkpoint, exported = f"{model}-run{lr}/checkpoints/step-0000000001", pathlib.Path(f"{model}-out{lr}")
    sherd("export", checkpoint, "--to-hf", exported, "--dtype", "f32")
    return checkpoint, exported


def check(name, config, place):
    """The folder of the trained model, and its logits."""
    whole = name in folders.WHOLES
    kind = transformers.AutoModelForImageTextToText if whole else transformers.AutoModelForCausalLM
    model = kind.from_config(config, attn_implementation="eager").to(torch.float32).eval()
    for tensor, parameter in model.named_parameters():
        folders.fill(tensor, parameter)
    model.save_pretrained(place / "model")
    (place / "tokens.bin").write_bytes(b"".join(t.to_bytes(2, "little") for t in TOKENS))
    (place / "many.bin").write_bytes((place / "tokens.bin").read_bytes() * 8)
    before, sets = logits_of(model, TOKENS) if whole else logits_in(place / "model"), []
    for lr in ("0", "0.01"):
        checkpoint, exported = step(place / "model", place, lr)
        after = logits_in(exported)
        loss = torch.nn.functional.cross_entropy(after[:-1], torch.tensor(TOKENS[1:])).item()
        out = sherd("eval", checkpoint, "--json", "--ranks", 1, "--set", f"data.validation_path={place}/tokens.bin",
                    "--set", f"training.seq_length={len(TOKENS) - 1}")
        ours = json.loads(out)["val_loss"]
        sets.append(f"{(after - before).abs().max():.1e}, loss {loss:.6f} (sherd {ours:.6f})")
        assert (lr == "0") == bool((after == before).all()) and abs(ours - loss) < 5e-6, (name, lr, sets)
    print(f"{name}: differences of logits {'; '.join(sets)}", flush=True)
    return exported, after


def check_other(python, exports):
    """That the other version computes the same of what it knows, and that its folders are read."""
    version = subprocess.run([python, "-c", "import transformers; print(transformers.__version__)"], check=True,
                             stdout=subprocess.PIPE, text=True).stdout
    if int(version.split(".")[0]) < 5:
        exports = {name: each for name, each in exports.items() if name not in ONLY_SINCE_5}
    command = [python, HERE / "logits.py", json.dumps(TOKENS), *(folder for folder, _ in exports.values())]
    answer = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout)
    for (name, (folder, ours)), theirs in zip(exports.items(), answer["logits"], strict=True):
        difference = (ours - torch.tensor(theirs, dtype=torch.float64)).abs().max()
        back = (logits_in(step(folder / "again", folder.parent, 0)[1]) - ours).abs().max()
        print(f"{name}: transformers {answer['version']} differs from {transformers.__version__} by {difference:.1e}; "
              f"a folder that it saved, by {back:.1e}", flush=True)
        assert difference < 1e-5 and back == 0, name


def main():
    with tempfile.TemporaryDirectory() as scratch:
        exports = {}
        for name, config in (folders.MODELS | folders.WHOLES).items():
            place = pathlib.Path(scratch, name)
            place.mkdir()
            exports[name] = check(name, config, place)
        for python in other_python:
            check_other(python, exports)
    print("all exports are what they should be")


main()
