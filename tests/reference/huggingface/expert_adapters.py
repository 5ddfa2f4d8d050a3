"""expert_adapters.py [--check | PROGRAM]: LoRA on the matrices of each expert, by torch's autograd in float64.

Writes tests/engine/huggingface/expert_adapters.json, in the form of adapters.json: for each case the losses of 20 steps
of AdamW, the gradient of the first, and what is trained after the last. Models are those of experts.py, whose weights
are W + s B A, with a pair A and B for each expert's matrix; transformers holds all experts in one tensor. An adapter's
tensors have the names that PEFT gives them where experts are modules of their own, and begin with folders.py's formula.

With PROGRAM (sherd): trains the same adapters with it, on 2 ranks that divide the experts, exports them, and compares
PEFT's logits with the adapter, transformers' with the merged model, and sherd's own loss.

Needs `./dev deps oracle`.
"""
import json
import pathlib
import re
import subprocess
import sys
import tempfile

import peft
import safetensors.torch
import torch
import transformers

arguments, sys.argv[1:] = sys.argv[1:], ["--check"]
import experts  # noqa: E402: its main() checks the committed values first
from folders import TOKENS, values_of  # noqa: E402

VALUES = experts.VALUES.with_name("expert_adapters.json")
ROWS, LENGTH, STEPS, RANK = 2, 16, 20, 4
LR, BETAS, EPS, DECAY = 2e-3, (0.9, 0.95), 1e-8, 0.1

# `modules`: patterns of the modules in a folder's names.
CASES = {
    "mixtral": dict(alpha=6, targets=["w1", "w2", "w3", "v_proj"], modules=r"experts\.\d+\.w[123]|v_proj"),
    "qwen3_moe": dict(alpha=5, rslora=True, targets=["moe.experts.gate", "moe.experts.down"],
                      modules=r"experts\.\d+\.(gate|down)_proj"),
    "qwen2_moe": dict(alpha=4, targets=["moe.experts.up", "shared_expert.down_proj", "q_proj"],
                      modules=r"experts\.\d+\.up_proj|shared_expert\.down_proj|q_proj"),
}
# PEFT 0.21 converts adapters of experts for the tensors of transformers 5, but not those of this type.
NOT_CONVERTED = ["qwen2_moe"]


def write_model(name, folder):
    """As experts.py makes it; the shapes of its tensors by their names in the file."""
    path = pathlib.Path(folder, "model.safetensors")
    transformers.AutoModelForCausalLM.from_config(experts.MODELS[name]).to(torch.float32).save_pretrained(folder)
    data = path.read_bytes()
    header = json.loads(data[8:8 + int.from_bytes(data[:8], "little")])
    header.pop("__metadata__")
    safetensors.torch.save_file({n: values_of(n, entry["shape"]) for n, entry in header.items()}, path,
                                metadata={"format": "pt"})
    return {n: entry["shape"] for n, entry in header.items()}


def load(folder, dtype=torch.float32):
    return transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=dtype,
                                                             experts_implementation="eager").eval()


def pairs_of(name, shapes):
    """A and B for each module of the case, by the module's name."""
    pairs = {}
    for tensor, shape in shapes.items():
        module = tensor.removesuffix(".weight")
        if not re.search(rf"\.({CASES[name]['modules']})$", module):
            continue
        pairs[module] = [
            values_of(f"base_model.model.{module}.lora_{side}.weight", sizes).double().requires_grad_()
            for side, sizes in (("A", [RANK, shape[1]]), ("B", [shape[0], RANK]))]
    return pairs


def scale_of(name):
    case = CASES[name]
    return case["alpha"] / (RANK ** 0.5 if case.get("rslora") else RANK)


def adapted(model, name, pairs):
    """Parameters as transformers holds them, with s B A added."""
    scale, weights = scale_of(name), dict(model.named_parameters())
    change = {}
    for module, (a, b) in pairs.items():
        at = re.fullmatch(r"(.*)\.experts\.(\d+)\.(\w+)", module)
        if not at:
            change[module + ".weight"] = weights[module + ".weight"] + scale * b @ a
            continue
        of_layer = at[1].replace("block_sparse_moe", "mlp") + ".experts."
        down = at[3] in ("w2", "down_proj")
        parameter = of_layer + ("down_proj" if down else "gate_up_proj")
        whole = weights[parameter]
        first = whole.shape[1] // 2 if at[3] in ("w3", "up_proj") else 0
        rows = torch.nn.functional.pad(scale * b @ a, (0, 0, first, whole.shape[1] - first - b.shape[0]))
        own = torch.zeros(whole.shape[0], 1, 1, dtype=whole.dtype)
        own[int(at[2])] = 1
        change[parameter] = change.get(parameter, whole) + own * rows
    return change


def batch():
    tokens = torch.tensor([(3 * t * t + 7 * t) % 56 for t in range(ROWS * LENGTH + 1)])
    return tokens[:-1].reshape(ROWS, LENGTH), tokens[1:]


def summary(values):
    flat = values.detach().reshape(-1)
    at = [0, flat.numel() // 3, 2 * flat.numel() // 3, flat.numel() - 1]
    return [flat.norm().item(), *(flat[i].item() for i in at)]


def train(name):
    with tempfile.TemporaryDirectory() as folder:
        shapes = write_model(name, folder)
        model = load(folder).double().requires_grad_(False)
    pairs = pairs_of(name, shapes)
    trained = {f"base_model.model.{m}.lora_{side}.weight": p for m, pair in pairs.items()
               for side, p in zip("AB", pair)}
    optimizer = torch.optim.AdamW(trained.values(), lr=LR, betas=BETAS, eps=EPS, weight_decay=DECAY)
    inputs, targets = batch()
    losses, gradients = [], {}
    for step in range(STEPS):
        optimizer.zero_grad()
        logits = torch.func.functional_call(model, adapted(model, name, pairs), (inputs,)).logits
        loss = torch.nn.functional.cross_entropy(logits.reshape(ROWS * LENGTH, -1), targets)
        loss.backward()
        losses.append(loss.item())
        if step == 0:
            gradients = {n: summary(p.grad) for n, p in trained.items()}
        optimizer.step()
    case = CASES[name]
    return {"model": name, "rank": RANK, "alpha": case["alpha"], "rslora": case.get("rslora", False),
            "targets": case["targets"], "modules_to_save": [], "losses": losses,
            "tensors": {n: {"shape": list(p.shape), "gradient": gradients[n], "after": summary(p)}
                        for n, p in trained.items()}}


def sherd(program, *words):
    return subprocess.run([program, *map(str, words)], check=True, stdout=subprocess.PIPE, text=True).stdout


def check_export(name, program, place):
    case = CASES[name]
    write_model(name, place / "model")
    tokens = [(3 * t * t + 7 * t) % 56 for t in range(TOKENS)]
    one = b"".join(t.to_bytes(2, "little") for t in tokens)
    (place / "tokens.bin").write_bytes(one)
    (place / "many.bin").write_bytes(one * 8)
    # PEFT wants gate and up, which are one tensor in memory.
    targets = sorted({*case["targets"], "moe.experts.gate", "moe.experts.up", "moe.experts.down"} -
                     {"w1", "w2", "w3", "shared_expert.down_proj"})
    (place / "r.yaml").write_text(f"""
model: {{from: {place}/model}}
adapter: {{type: lora, rank: {RANK}, alpha: {case['alpha']}, targets: {json.dumps(targets)}}}
data: {{path: {place}/many.bin, format: bin, validation_fraction: 0}}
training: {{seq_length: 16, global_batch_size: 4, max_steps: 8}}
zero_optimization: {{stage: 3}}
parallelism: {{expert_parallel_degree: 2}}
optimizer: {{lr: 0.02}}
run: {{output_dir: {place}/run}}
checkpoint: {{interval: 8}}
""")
    sherd(program, "train", place / "r.yaml", "--ranks", 2)
    checkpoint = place / "run/checkpoints/step-0000000008"
    out = sherd(program, "eval", checkpoint, "--json", "--ranks", 1, "--set",
                f"data.validation_path={place}/tokens.bin", "--set", f"training.seq_length={len(tokens) - 1}")
    ours = json.loads(out)["val_loss"]
    sherd(program, "export", checkpoint, "--to-hf", place / "adapter")
    sherd(program, "export", checkpoint, "--to-hf", place / "merged", "--merge", "--dtype", "f32")
    row = torch.tensor([tokens])

    def logits(model):
        with torch.no_grad():
            return model.double().eval()(row).logits[0]

    before = logits(load(place / "model"))
    with_adapter = None
    if name not in NOT_CONVERTED:
        with_adapter = logits(peft.PeftModel.from_pretrained(load(place / "model"), place / "adapter"))
    merged = logits(load(place / "merged"))
    loss = torch.nn.functional.cross_entropy(merged[:-1], row[0, 1:]).item()
    assert (merged - before).abs().max() > 1e-2, name
    assert abs(loss - ours) < 5e-6, (name, loss, ours)
    said = "PEFT drops it"
    if with_adapter is not None:
        difference = (merged - with_adapter).abs().max()
        assert difference < 1e-5, (name, difference)
        said = f"PEFT differs from the merged model by {difference:.1e}"
    print(f"{name}: loss {loss:.6f} (sherd {ours:.6f}), {said}", flush=True)


def main():
    if arguments and arguments != ["--check"]:
        for name in CASES:
            with tempfile.TemporaryDirectory() as scratch:
                check_export(name, arguments[0], pathlib.Path(scratch))
        print("all adapters are what they should be")
        return
    cases = {name: train(name) for name in CASES}
    if not arguments:
        VALUES.write_text(json.dumps(cases, separators=(",", ":")) + "\n")
        return
    for name, case in json.loads(VALUES.read_text()).items():
        worst = max(abs(a - b) for a, b in zip(case["losses"], cases[name]["losses"], strict=True))
        assert worst < 1e-9, (name, worst)


main()
