"""upcycle.py DENSE OUT {slices,copies}: a dense Llama folder as a mixture of experts that computes the same.

Writes a folder of type mixtral. The feed-forward layer of width F is cut into 4 slices of F / 4.

  slices   4 experts, 4 for each token: expert e is slice e. The router is zero, so each weight is exactly 1/4.
  copies   8 experts, 4 for each token: two copies of each slice. The router's row is u for the first copies and -u for
           the second, u random: the sign of u x chooses four experts with equal logits, so each weight is exactly 1/4,
           and real text is routed.

Down matrices are multiplied by 4. These are powers of two, so the result differs from the dense model's only in the
order of a sum. Source: Komatsuzaki et al. 2023 (sparse upcycling), with exact weights.

Needs `./dev deps oracle`.
"""
import json
import pathlib
import shutil
import sys

import safetensors.torch
import torch

SLICES = 4


def main():
    dense, out, how = pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2]), sys.argv[3]
    experts = {"slices": 4, "copies": 8}[how]
    config = json.loads((dense / "config.json").read_text())
    width, ffn = config["hidden_size"], config["intermediate_size"]
    assert config["model_type"] == "llama" and ffn % SLICES == 0
    weights = safetensors.torch.load_file(dense / "model.safetensors")
    generator = torch.Generator().manual_seed(1)
    for layer in range(config["num_hidden_layers"]):
        old, new = f"model.layers.{layer}.mlp.", f"model.layers.{layer}.block_sparse_moe."
        gate, up, down = (weights.pop(f"{old}{name}_proj.weight") for name in ("gate", "up", "down"))
        for expert in range(experts):
            rows = slice(expert % SLICES * ffn // SLICES, (expert % SLICES + 1) * ffn // SLICES)
            weights[f"{new}experts.{expert}.w1.weight"] = gate[rows].clone()
            weights[f"{new}experts.{expert}.w3.weight"] = up[rows].clone()
            weights[f"{new}experts.{expert}.w2.weight"] = (down[:, rows] * SLICES).contiguous()
        u = torch.randn(width, generator=generator) * 0.02
        router = torch.zeros(experts, width)
        if how == "copies":
            router[:SLICES], router[SLICES:] = u, -u
        weights[f"{new}gate.weight"] = router
    config |= {"model_type": "mixtral", "architectures": ["MixtralForCausalLM"], "num_local_experts": experts,
               "num_experts_per_tok": SLICES, "intermediate_size": ffn // SLICES, "sliding_window": None,
               "router_jitter_noise": 0.0}
    for key in ("mlp_bias", "attention_bias", "pretraining_tp", "rope_interleaved"):
        config.pop(key, None)
    out.mkdir(parents=True)
    (out / "config.json").write_text(json.dumps(config, indent=2))
    safetensors.torch.save_file(weights, out / "model.safetensors", metadata={"format": "pt"})
    for file in dense.iterdir():
        if file.name not in ("config.json", "model.safetensors") and file.is_file():
            shutil.copy(file, out / file.name)


main()
