"""experts.py [--check]: tiny mixtures of experts of `transformers`, and what it makes of them.

Writes tests/engine/huggingface/experts.json: for each family the text of config.json, the exact header of
model.safetensors, the experts that each token of each layer goes to, the loss of a fixed row of tokens, and of the
loss's gradient some elements of every tensor. Weights are the formula of folders.py, by the names in the file. Sizes
are pairwise different, so that no two dimensions can be confused. All is computed in float64.

Two more models have the form of tensors that transformers 5 holds in memory (`stacked`).

Needs `./dev deps oracle`.
"""
import json
import pathlib
import sys
import tempfile

import safetensors.torch
import torch
import transformers

from folders import TOKENS, values_of

HERE = pathlib.Path(__file__).resolve().parent
VALUES = HERE.parents[1] / "engine" / "huggingface" / "experts.json"
SAMPLES = 6  # elements of each gradient
MARGIN = 1e-4  # between the last expert that is chosen and the first that isn't, of scores

SIZES = dict(vocab_size=56, hidden_size=32, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
             max_position_embeddings=64, pad_token_id=None, bos_token_id=1, eos_token_id=2)
MODELS = {
    "mixtral": transformers.MixtralConfig(**SIZES, intermediate_size=20, num_local_experts=6, num_experts_per_tok=2),
    "mixtral_window": transformers.MixtralConfig(**SIZES, intermediate_size=20, num_local_experts=5, head_dim=16,
                                                 num_experts_per_tok=3, sliding_window=7),
    "qwen2_moe": transformers.Qwen2MoeConfig(**SIZES, intermediate_size=44, moe_intermediate_size=20, num_experts=6,
                                             num_experts_per_tok=3, shared_expert_intermediate_size=28,
                                             mlp_only_layers=[]),
    "qwen3_moe": transformers.Qwen3MoeConfig(**SIZES, intermediate_size=44, moe_intermediate_size=20, head_dim=16,
                                             num_experts=6, num_experts_per_tok=2, norm_topk_prob=True,
                                             mlp_only_layers=[0]),
    "qwen3_moe_plain": transformers.Qwen3MoeConfig(**(SIZES | dict(num_hidden_layers=3)), intermediate_size=44,
                                                   moe_intermediate_size=20, num_experts=7, num_experts_per_tok=4,
                                                   decoder_sparse_step=2, attention_bias=True, head_dim=8),
    "olmoe": transformers.OlmoeConfig(**SIZES, intermediate_size=20, num_experts=6, num_experts_per_tok=3),
    "granitemoe": transformers.GraniteMoeConfig(**SIZES, intermediate_size=20, num_local_experts=6,
                                                num_experts_per_tok=3, attention_multiplier=0.25,
                                                embedding_multiplier=3.0, residual_multiplier=0.5, logits_scaling=2.0),
    "minimax_m2": transformers.MiniMaxM2Config(**SIZES, intermediate_size=20, num_local_experts=6,
                                               num_experts_per_tok=3, head_dim=16,
                                               rope_parameters=dict(rope_type="default", rope_theta=10000.0,
                                                                    partial_rotary_factor=0.5)),
}
STACKED = ["mixtral", "qwen3_moe", "minimax_m2"]


def mlp_of(layer):
    return getattr(layer, "mlp", None) or layer.block_sparse_moe


def choices_of(model, router_logits):
    """Per layer and token, ascending; asserts that no choice is close."""
    all_layers = []
    for layer, logits in zip([layer for layer in model.model.layers if hasattr(mlp_of(layer), "gate")
                              or hasattr(mlp_of(layer), "router")], router_logits):
        k = model.config.num_experts_per_tok
        bias = getattr(mlp_of(layer), "e_score_correction_bias", None)
        scores = torch.softmax(logits.double(), -1) if bias is None else torch.sigmoid(logits.double()) + bias
        top = torch.topk(scores, k + 1, -1)
        assert (top.values[:, k - 1] - top.values[:, k]).min() > MARGIN
        all_layers.append(top.indices[:, :k].sort(-1).values.tolist())
    return all_layers


def case_of(config, stacked):
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder, "model.safetensors")
        model = transformers.AutoModelForCausalLM.from_config(config).to(torch.float32)
        model.save_pretrained(folder, save_original_format=not stacked)
        data = path.read_bytes()
        header = data[8:8 + int.from_bytes(data[:8], "little")].decode()
        tensors = {name: values_of(name, entry["shape"]) for name, entry in json.loads(header).items()
                   if name != "__metadata__"}
        safetensors.torch.save_file(tensors, path, metadata={"format": "pt"})
        text = pathlib.Path(folder, "config.json").read_text()
        model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32,
                                                                  experts_implementation="eager").double()
    tokens = torch.tensor([[(3 * t * t + 7 * t) % 56 for t in range(TOKENS)]])
    out = model(tokens[:, :-1], output_router_logits=True)
    loss = torch.nn.functional.cross_entropy(out.logits[0], tokens[0, 1:])
    loss.backward()
    # Gradients under the names of the file: transformers converts them as it converts weights.
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(parameter.grad if parameter.grad is not None else torch.zeros_like(parameter))
        for name, buffer in model.named_buffers():
            if name.endswith("e_score_correction_bias"):
                buffer.zero_()  # a choice has no gradient
    gradients = {}
    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(folder, save_original_format=not stacked)
        for name, gradient in safetensors.torch.load_file(pathlib.Path(folder, "model.safetensors")).items():
            flat = gradient.reshape(-1)
            step = max(1, flat.numel() // SAMPLES)
            gradients[name] = [[i, flat[i].item()] for i in range(step // 2, flat.numel(), step)][:SAMPLES]
    return {"config": text, "header": header, "loss": loss.item(),
            "chosen": choices_of(model, out.router_logits), "gradients": gradients}


def main():
    cases = {name: case_of(config, False) for name, config in MODELS.items()}
    cases |= {f"{name}_stacked": case_of(MODELS[name], True) for name in STACKED}
    if sys.argv[1:] != ["--check"]:
        VALUES.write_text(json.dumps(cases, indent=None, separators=(",", ":")) + "\n")
        return
    committed = json.loads(VALUES.read_text())
    for name, case in cases.items():
        assert committed[name]["header"] == case["header"], name
        assert committed[name]["chosen"] == case["chosen"], name
        assert abs(committed[name]["loss"] - case["loss"]) < 1e-9, name


main()
