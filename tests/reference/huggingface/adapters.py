"""adapters.py [--check | PROGRAM]: LoRA by PEFT on tiny models of folders.py, in float64.

Writes tests/engine/huggingface/adapters.json: for each case the keys of its adapter, the losses of 20 steps
of AdamW, the gradient of the first, and what is trained after the last. Model and adapter begin with
folders.py's formula, an adapter's tensors by their names in PEFT's file. A step's batch is two rows of 16
tokens, token t being (3 t^2 + 7 t) mod 56, the same in every step.

With PROGRAM (sherd): trains the same adapters with it, from A and B as it begins them, on 2 ranks at stage 3,
exports them, and compares: PEFT's logits with the adapter, transformers' with the merged model, and sherd's own
loss. Merged weights are compared with W + s B A in float64, rounded once.

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

VALUES = folders.VALUES.with_name("adapters.json")
ROWS, LENGTH, STEPS, RANK = 2, 16, 20, 4
LR, BETAS, EPS, DECAY = 2e-3, (0.9, 0.95), 1e-8, 0.1

CASES = {
    "llama": dict(lora_alpha=6, target_modules=["q_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]),
    "llama_head": dict(model="llama", lora_alpha=4, target_modules=["k_proj", "down_proj"],
                       modules_to_save=["lm_head", "input_layernorm"]),
    "gpt2": dict(lora_alpha=6, target_modules=["c_attn", "mlp.c_proj", "c_fc"], use_rslora=True, fan_in_fan_out=True),
    "gpt_neox": dict(lora_alpha=5, target_modules=["query_key_value", "dense", "dense_4h_to_h"]),
    "phi3": dict(lora_alpha=8, target_modules=["qkv_proj", "o_proj", "gate_up_proj", "down_proj"]),
    "stablelm_half": dict(lora_alpha=3, target_modules=["q_proj", "k_proj", "up_proj"], use_rslora=True),
    "glm4": dict(lora_alpha=4, target_modules=["q_proj", "k_proj", "gate_up_proj"]),
}


def model_of(name):
    config = folders.MODELS[CASES[name].get("model", name)]
    model = transformers.AutoModelForCausalLM.from_config(config).to(torch.float32).eval()
    for tensor, parameter in model.named_parameters():
        folders.fill("embed_out.weight" if config.model_type == "gpt_neox" and tensor == "lm_head.weight" else tensor,
                     parameter)
    return model


def lora_config(name):
    keys = {key: value for key, value in CASES[name].items() if key != "model"}
    return peft.LoraConfig(r=RANK, task_type="CAUSAL_LM", **keys)


def file_name(parameter):
    return parameter.replace(".modules_to_save.default", "").replace(".default", "")


def batch():
    tokens = torch.tensor([(3 * t * t + 7 * t) % 56 for t in range(ROWS * LENGTH + 1)])
    return tokens[:-1].reshape(ROWS, LENGTH), tokens[1:]


def summary(values):
    flat = values.detach().reshape(-1)
    at = [0, flat.numel() // 3, 2 * flat.numel() // 3, flat.numel() - 1]
    return [flat.norm().item(), *(flat[i].item() for i in at)]


def train(name):
    model = peft.get_peft_model(model_of(name), lora_config(name)).double().eval()
    trained = {file_name(n): p for n, p in model.named_parameters() if p.requires_grad}
    for tensor, parameter in trained.items():
        if ".lora_" in tensor:
            folders.fill(tensor, parameter)
    matrices = [p for p in trained.values() if p.dim() > 1]
    vectors = [p for p in trained.values() if p.dim() == 1]
    optimizer = torch.optim.AdamW([dict(params=matrices, weight_decay=DECAY), dict(params=vectors, weight_decay=0)],
                                  lr=LR, betas=BETAS, eps=EPS)
    inputs, targets = batch()
    losses, gradients = [], {}
    for step in range(STEPS):
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(model(inputs).logits.reshape(ROWS * LENGTH, -1), targets)
        loss.backward()
        losses.append(loss.item())
        if step == 0:
            gradients = {n: summary(p.grad) for n, p in trained.items()}
        optimizer.step()
    return {"model": CASES[name].get("model", name), "rank": RANK, "alpha": CASES[name]["lora_alpha"],
            "rslora": CASES[name].get("use_rslora", False), "targets": CASES[name]["target_modules"],
            "modules_to_save": CASES[name].get("modules_to_save", []), "losses": losses,
            "tensors": {n: {"shape": list(p.shape), "gradient": gradients[n], "after": summary(p)}
                        for n, p in trained.items()}}


def sherd(program, *words):
    return subprocess.run([program, *map(str, words)], check=True, stdout=subprocess.PIPE, text=True).stdout


def rounded_once(values, dtype):
    """To `dtype`, ties to even; torch goes from float64 to bfloat16 by way of float32."""
    if dtype == torch.float32:
        return values.to(dtype)
    mantissa, exponent = torch.frexp(values)
    return torch.ldexp(torch.round(mantissa * 256), exponent - 8).to(dtype)


def check_export(name, program, place):
    case = CASES[name]
    model_of(name).save_pretrained(place / "model")
    tokens = [(3 * t * t + 7 * t) % 56 for t in range(folders.TOKENS)]
    one = b"".join(t.to_bytes(2, "little") for t in tokens)
    (place / "tokens.bin").write_bytes(one)
    (place / "many.bin").write_bytes(one * 8)
    (place / "r.yaml").write_text(f"""
model: {{from: {place}/model}}
adapter: {{type: lora, rank: {RANK}, alpha: {case['lora_alpha']}, rslora: {str(case.get('use_rslora', False)).lower()},
  targets: {json.dumps(case['target_modules'])}, modules_to_save: {json.dumps(case.get('modules_to_save', []))}}}
data: {{path: {place}/many.bin, format: bin, validation_fraction: 0}}
training: {{seq_length: 16, global_batch_size: 4, max_steps: 8}}
zero_optimization: {{stage: 3}}
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
    sherd(program, "export", checkpoint, "--to-hf", place / "merged16", "--merge", "--dtype", "bf16")
    row = torch.tensor([tokens])

    def logits(model):
        with torch.no_grad():
            return model.double().eval()(row).logits[0]

    base = transformers.AutoModelForCausalLM.from_pretrained(place / "model", dtype=torch.float32)
    before = logits(base)
    adapted = peft.PeftModel.from_pretrained(
        transformers.AutoModelForCausalLM.from_pretrained(place / "model", dtype=torch.float32), place / "adapter")
    with_adapter = logits(adapted)
    merged = logits(transformers.AutoModelForCausalLM.from_pretrained(place / "merged", dtype=torch.float32))
    loss = torch.nn.functional.cross_entropy(with_adapter[:-1], row[0, 1:]).item()
    assert (with_adapter - before).abs().max() > 1e-2, name
    assert (merged - with_adapter).abs().max() < 1e-5, (name, (merged - with_adapter).abs().max())
    assert abs(loss - ours) < 5e-6, (name, loss, ours)
    # Weights: PEFT's own matrices in float64, rounded once.
    delta = {f"{n.removeprefix('base_model.model.')}.weight": m.get_delta_weight("default")
             for n, m in adapted.named_modules() if isinstance(m, peft.tuners.lora.LoraLayer)}
    whole = transformers.AutoModelForCausalLM.from_pretrained(place / "model", dtype=torch.float64).state_dict()
    for folder, dtype in (("merged", torch.float32), ("merged16", torch.bfloat16)):
        written = transformers.AutoModelForCausalLM.from_pretrained(place / folder, dtype=dtype).state_dict()
        for tensor, change in delta.items():
            assert (written[tensor] == rounded_once(whole[tensor] + change, dtype)).all(), (name, folder, tensor)
    print(f"{name}: loss {loss:.6f} (sherd {ours:.6f}), merged differs by {(merged - with_adapter).abs().max():.1e}, "
          f"{len(delta)} merged matrices as rounded once", flush=True)


def main():
    if arguments and arguments != ["--check"]:
        for name in CASES:
            with tempfile.TemporaryDirectory() as scratch:
                check_export(name, arguments[0], pathlib.Path(scratch))
        print("all adapters are what they should be")
        return
    cases = {name: train(name) for name in CASES}
    if not arguments:
        VALUES.write_text(json.dumps(cases, indent=1) + "\n")
        return
    for name, case in json.loads(VALUES.read_text()).items():
        worst = max(abs(a - b) for a, b in zip(case["losses"], cases[name]["losses"], strict=True))
        assert worst < 1e-9, (name, worst)


main()
