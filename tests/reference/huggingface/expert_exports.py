"""expert_exports.py PROGRAM [NAME...]: every mixture of experts.py is saved by `transformers`, read by PROGRAM (sherd),
trained for a step at stage 3 on 2 ranks that divide the experts, exported in f32, and loaded by `transformers` again.
Checked: a step that learns nothing leaves the logits as they were, bit for bit; one that learns gives other logits,
and sherd's own loss of its checkpoint is that of the exported folder. Those that experts.py has in the stacked form,
too, are read and exported so once more. Phi-3.5-MoE, which isn't trained, comes back by `sherd merge`.

Needs `./dev deps oracle`.
"""
import json
import pathlib
import subprocess
import sys
import tempfile

import safetensors.torch
import torch
import transformers

from logits import logits_of

program, names = sys.argv[1], sys.argv[2:]
sys.argv[1:] = ["--check"]
import experts  # noqa: E402
from folders import TOKENS, values_of  # noqa: E402

ROW = [(3 * t * t + 7 * t) % 56 for t in range(TOKENS)]


def sherd(*words):
    done = subprocess.run([program, *map(str, words)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert done.returncode == 0, f"sherd {' '.join(map(str, words))}: {done.stderr}"
    return done.stdout


def load(folder):
    return transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager",
                                                             experts_implementation="eager").eval()


def write(config, folder, stacked):
    """A folder with the formula's weights, as experts.py makes it."""
    path = folder / "model.safetensors"
    model = transformers.AutoModelForCausalLM.from_config(config).to(torch.float32)
    model.save_pretrained(folder, save_original_format=not stacked)
    data = path.read_bytes()
    header = json.loads(data[8:8 + int.from_bytes(data[:8], "little")])
    tensors = {name: values_of(name, entry["shape"]) for name, entry in header.items() if name != "__metadata__"}
    safetensors.torch.save_file(tensors, path, metadata={"format": "pt"})
    return {name: entry for name, entry in header.items() if name != "__metadata__"}


def header_of(folder):
    entries = {}
    for path in folder.glob("*.safetensors"):
        data = path.read_bytes()
        header = json.loads(data[8:8 + int.from_bytes(data[:8], "little")])
        entries |= {name: entry["shape"] for name, entry in header.items() if name != "__metadata__"}
    return entries


def trained(model, place, lr, stacked):
    """One step from the folder `model`: its checkpoint and the folder that is exported from it."""
    experts_of = json.loads((model / "config.json").read_text())
    count = next(experts_of[key] for key in ("num_local_experts", "num_experts", "n_routed_experts", "moe_num_experts")
                 if key in experts_of)
    degree = 2 if count % 2 == 0 and experts_of["model_type"] != "gpt_oss" else 1  # biases aren't divided
    (place / "r.yaml").write_text(f"""
model: {{from: {model}}}
data: {{path: {place}/many.bin, format: bin, validation_fraction: 0}}
training: {{seq_length: 16, global_batch_size: 4, max_steps: 1}}
zero_optimization: {{stage: 3}}
parallelism: {{expert_parallel_degree: {degree}}}
optimizer: {{type: sgd, lr: {lr}, weight_decay: 0}}
run: {{output_dir: {model}-run{lr}}}
checkpoint: {{init_from: {model}, interval: 1}}
""")
    sherd("train", place / "r.yaml", "--ranks", 2)
    checkpoint, exported = f"{model}-run{lr}/checkpoints/step-0000000001", pathlib.Path(f"{model}-out{lr}")
    sherd("export", checkpoint, "--to-hf", exported, "--dtype", "f32", *(["--stack-experts"] if stacked else []))
    return checkpoint, exported


def check(name, config, place, stacked):
    model = place / "model"
    model.mkdir()
    shapes = {tensor: entry["shape"] for tensor, entry in write(config, model, stacked).items()}
    (place / "tokens.bin").write_bytes(b"".join(t.to_bytes(2, "little") for t in ROW))
    (place / "many.bin").write_bytes((place / "tokens.bin").read_bytes() * 8)
    before, said = logits_of(load(model), ROW), []
    if config.model_type in experts.NOT_TRAINED:
        sherd("merge", model, model, "--output", place / "merged")
        assert (logits_of(load(place / "merged"), ROW) == before).all(), name
        return print(f"{name}: merged, and the logits are the same", flush=True)
    for lr in ("0", "0.01"):
        checkpoint, exported = trained(model, place, lr, stacked)
        assert header_of(exported) == shapes, (name, set(header_of(exported).items()) ^ set(shapes.items()))
        after = logits_of(load(exported), ROW)
        loss = torch.nn.functional.cross_entropy(after[:-1], torch.tensor(ROW[1:])).item()
        out = sherd("eval", checkpoint, "--json", "--ranks", 1, "--set", f"data.validation_path={place}/tokens.bin",
                    "--set", f"training.seq_length={len(ROW) - 1}")
        ours = json.loads(out)["val_loss"]
        said.append(f"{(after - before).abs().max():.1e}, loss {loss:.6f} (sherd {ours:.6f})")
        assert (lr == "0") == bool((after == before).all()) and abs(ours - loss) < 5e-6, (name, lr, said)
    print(f"{name}: differences of logits {'; '.join(said)}", flush=True)


def main():
    cases = [(name, False) for name in experts.MODELS] + [(name, True) for name in experts.STACKED]
    failed = []
    for name, stacked in cases:
        label = f"{name}_stacked" if stacked else name
        if names and label not in names:
            continue
        with tempfile.TemporaryDirectory() as scratch:
            try:
                check(label, experts.MODELS[name], pathlib.Path(scratch), stacked)
            except AssertionError as error:
                failed.append(label)
                print(f"{label}: {error}", flush=True)
    sys.exit(f"not as they should be: {', '.join(failed)}" if failed else 0)


main()
