"""exports.py PROGRAM: every model of folders.py is saved by `transformers`, read by PROGRAM (sherd), trained for a
step at stage 3 on 2 ranks, exported in f32, and loaded by `transformers` again. Checked: a step that learns
nothing leaves the logits as they were, bit for bit; one that learns gives other logits, and sherd's own loss of
its checkpoint is that of the exported folder.

Needs `./dev deps oracle`.
"""
import json
import pathlib
import subprocess
import sys
import tempfile

import torch
import transformers

sys.argv, program = [sys.argv[0], "--check"], sys.argv[1]
import folders  # noqa: E402: its main() checks the committed values first

TOKENS = [(3 * t * t + 7 * t) % 56 for t in range(folders.TOKENS)]


def sherd(*words):
    return subprocess.run([program, *map(str, words)], check=True, stdout=subprocess.PIPE, text=True).stdout


def logits_of(folder):
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    with torch.no_grad():
        return model(torch.tensor([TOKENS])).logits[0].double()


def check(name, config, place):
    model = transformers.AutoModelForCausalLM.from_config(config).to(torch.float32).eval()
    for tensor, parameter in model.named_parameters():
        folders.fill(tensor, parameter)
    model.save_pretrained(place / "model")
    (place / "tokens.bin").write_bytes(b"".join(t.to_bytes(2, "little") for t in TOKENS))
    (place / "many.bin").write_bytes((place / "tokens.bin").read_bytes() * 8)
    before, sets = logits_of(place / "model"), []
    for lr in ("0", "0.01"):
        (place / "r.yaml").write_text(f"""
model: {{from: {place}/model}}
data: {{path: {place}/many.bin, format: bin, validation_fraction: 0}}
training: {{seq_length: 16, global_batch_size: 4, max_steps: 1}}
zero_optimization: {{stage: 3}}
optimizer: {{type: sgd, lr: {lr}, weight_decay: 0}}
run: {{output_dir: {place}/run{lr}}}
checkpoint: {{init_from: {place}/model, interval: 1}}
""")
        sherd("train", place / "r.yaml", "--ranks", 2)
        checkpoint = place / f"run{lr}/checkpoints/step-0000000001"
        sherd("export", checkpoint, "--to-hf", place / f"out{lr}", "--dtype", "f32")
        after = logits_of(place / f"out{lr}")
        loss = torch.nn.functional.cross_entropy(after[:-1], torch.tensor(TOKENS[1:])).item()
        out = sherd("eval", checkpoint, "--json", "--ranks", 1, "--set", f"data.validation_path={place}/tokens.bin",
                    "--set", f"training.seq_length={len(TOKENS) - 1}")
        ours = json.loads(out)["val_loss"]
        sets.append(f"{(after - before).abs().max():.1e}, loss {loss:.6f} (sherd {ours:.6f})")
        assert (lr == "0") == bool((after == before).all()) and abs(ours - loss) < 5e-6, (name, lr, sets)
    print(f"{name}: differences of logits {'; '.join(sets)}", flush=True)


for name, config in folders.MODELS.items():
    with tempfile.TemporaryDirectory() as place:
        check(name, config, pathlib.Path(place))
print("all exports are what they should be")
