"""experts.py [--check]: tiny mixtures of experts of `transformers`, and what it makes of them.

Writes tests/engine/huggingface/experts.json: for each family the text of config.json, the exact header of
model.safetensors, the experts that each token of each layer goes to, the loss of a fixed row of tokens, and of the
loss's gradient some elements of every tensor. Weights are the formula of folders.py, by the names in the file. Sizes
are pairwise different, so that no two dimensions can be confused. All is computed in float64.

Some models are there once more in the form of tensors that transformers 5 holds in memory (`stacked`). Phi-3.5-MoE has
no gradients: it is trained with another router than it is evaluated with.

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
# 24 numbers of a head, 8 of them rotated; values of 12.
LATENT = dict(SIZES, intermediate_size=44, moe_intermediate_size=20, num_key_value_heads=4, kv_lora_rank=24,
              qk_nope_head_dim=16, qk_rope_head_dim=8, v_head_dim=12)
YARN = dict(rope_type="yarn", rope_theta=10000.0, factor=4.0, original_max_position_embeddings=16, beta_fast=32.0,
            beta_slow=1.0)
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
    "qwen2_moe_mixed": transformers.Qwen2MoeConfig(**(SIZES | dict(num_hidden_layers=3)), intermediate_size=44,
                                                   moe_intermediate_size=20, num_experts=6, num_experts_per_tok=2,
                                                   shared_expert_intermediate_size=28, mlp_only_layers=[1]),
    "deepseek_v2": transformers.DeepseekV2Config(**LATENT, q_lora_rank=None, n_routed_experts=6, num_experts_per_tok=3,
                                                 n_shared_experts=2, first_k_dense_replace=1),
    "deepseek_v2_groups": transformers.DeepseekV2Config(
        **LATENT, q_lora_rank=20, n_routed_experts=8, num_experts_per_tok=2, n_shared_experts=1, n_group=4,
        topk_group=2, topk_method="group_limited_greedy", routed_scaling_factor=16.0, first_k_dense_replace=0,
        rope_parameters=dict(YARN, mscale=0.707, mscale_all_dim=0.707)),
    "deepseek_v3": transformers.DeepseekV3Config(**LATENT, q_lora_rank=20, n_routed_experts=8, num_experts_per_tok=3,
                                                 n_group=4, topk_group=2, first_k_dense_replace=1,
                                                 rope_parameters=dict(YARN, mscale=1.0, mscale_all_dim=1.0)),
    "deepseek_v3_plain": transformers.DeepseekV3Config(**(LATENT | dict(v_head_dim=16)), q_lora_rank=None,
                                                       n_routed_experts=6, num_experts_per_tok=2, n_group=1,
                                                       topk_group=1, first_k_dense_replace=0, norm_topk_prob=False,
                                                       routed_scaling_factor=2.446),
    "glm4_moe": transformers.Glm4MoeConfig(**SIZES, intermediate_size=44, moe_intermediate_size=20, head_dim=16,
                                           n_routed_experts=6, num_experts_per_tok=2, first_k_dense_replace=1,
                                           attention_bias=True, use_qk_norm=True, routed_scaling_factor=2.5),
    "dots1": transformers.Dots1Config(**SIZES, intermediate_size=44, moe_intermediate_size=20, head_dim=16,
                                      n_shared_experts=2, n_routed_experts=6, num_experts_per_tok=3,
                                      first_k_dense_replace=1, norm_topk_prob=True, routed_scaling_factor=2.5,
                                      sliding_window=7, max_window_layers=1),
    "ernie4_5_moe": transformers.Ernie4_5_MoeConfig(**(SIZES | dict(num_hidden_layers=3)), intermediate_size=44,
                                                    moe_intermediate_size=20, moe_num_experts=6, moe_k=3,
                                                    moe_num_shared_experts=2, moe_layer_start_index=1,
                                                    tie_word_embeddings=True),
    "hunyuan_v1_moe": transformers.HunYuanMoEV1Config(**SIZES, intermediate_size=20, num_experts=6, moe_topk=[2, 2],
                                                      head_dim=16),
    "hunyuan_v1_moe_alpha": transformers.HunYuanMoEV1Config(
        **SIZES, intermediate_size=20, num_experts=6, moe_topk=3, head_dim=16,
        rope_parameters=dict(rope_type="dynamic", rope_theta=10000.0, alpha=50.0, factor=1.0)),
    "gpt_oss": transformers.GptOssConfig(**SIZES, intermediate_size=20, num_local_experts=6, num_experts_per_tok=3,
                                         head_dim=16, sliding_window=7,
                                         rope_parameters=dict(rope_type="yarn", rope_theta=150000.0, factor=4.0,
                                                              original_max_position_embeddings=16, beta_fast=32.0,
                                                              beta_slow=1.0, truncate=False)),
    "granitemoeshared": transformers.GraniteMoeSharedConfig(
        **SIZES, intermediate_size=20, shared_intermediate_size=28, num_local_experts=6, num_experts_per_tok=3,
        attention_multiplier=0.25, embedding_multiplier=3.0, residual_multiplier=0.5, logits_scaling=2.0),
    # Four positions at a time, so that queries grow within the row; every fourth layer doesn't rotate.
    "llama4_text": transformers.Llama4TextConfig(**(SIZES | dict(num_hidden_layers=4)), intermediate_size=20,
                                                 intermediate_size_mlp=44, num_local_experts=6, head_dim=16,
                                                 interleave_moe_layer_step=2, floor_scale=4, attn_scale=0.3,
                                                 attention_chunk_size=48),
    "llama4_text_two": transformers.Llama4TextConfig(
        **SIZES, intermediate_size=20, intermediate_size_mlp=44, num_local_experts=7, num_experts_per_tok=3, head_dim=8,
        moe_layers=[0], no_rope_layers=[0, 1], use_qk_norm=False, attn_temperature_tuning=False, attention_bias=True,
        rope_parameters=dict(rope_type="llama3", rope_theta=500000.0, factor=8.0, low_freq_factor=1.0,
                             high_freq_factor=4.0, original_max_position_embeddings=16)),
    # Wide near ties, so that weights differ from 1.
    "phimoe": transformers.PhimoeConfig(
        **SIZES, intermediate_size=20, num_local_experts=6, router_jitter_noise=0.4, attention_bias=True,
        lm_head_bias=True, sliding_window=7,
        rope_parameters=dict(rope_type="longrope", rope_theta=10000.0, short_factor=[1.0, 1.25, 1.5, 2.0],
                             long_factor=[1.0, 2.0, 4.0, 8.0], short_mscale=1.25, long_mscale=1.5,
                             original_max_position_embeddings=48)),
    "phimoe_plain": transformers.PhimoeConfig(**SIZES, intermediate_size=20, num_local_experts=5),
}
STACKED = ["mixtral", "qwen3_moe", "minimax_m2", "deepseek_v2", "deepseek_v3", "glm4_moe", "dots1", "ernie4_5_moe",
           "hunyuan_v1_moe", "phimoe"]
BY_SIGMOID = ["minimax_m2", "deepseek_v3", "glm4_moe", "dots1", "llama4_text"]
NOT_TRAINED = ["phimoe"]  # its evaluation has no gradient of its own


def is_router(module):
    return type(module).__name__.endswith(("Router", "Gate", "TopKGating"))


def bias_of(router, layer):
    for owner in (router, getattr(router, "moe_statics", None), getattr(layer, "mlp", None)):
        if getattr(owner, "e_score_correction_bias", None) is not None:
            return owner.e_score_correction_bias.double().reshape(-1)
    return 0.0


def choice_of(config, logits, bias):
    """The experts of each token, ascending; asserts that no choice is close, neither of groups nor of experts."""
    def chosen(scores, k):
        if k == scores.shape[-1]:
            return torch.arange(k).expand(scores.shape)
        top = torch.topk(scores, k + 1, -1)
        assert (top.values[:, k - 1] - top.values[:, k]).min() > MARGIN
        return top.indices[:, :k]

    by_sigmoid = config.model_type in BY_SIGMOID
    scores = (torch.sigmoid(logits) if by_sigmoid else torch.softmax(logits, -1)) + bias
    groups = getattr(config, "n_group", None) or 1
    if groups > 1 and getattr(config, "topk_method", None) != "greedy":
        grouped = scores.view(len(scores), groups, -1)
        of_group = grouped.topk(2, -1).values.sum(-1) if by_sigmoid else grouped.max(-1).values
        kept = torch.zeros_like(of_group).scatter_(1, chosen(of_group, config.topk_group), 1)
        scores = grouped.masked_fill(kept.unsqueeze(-1) == 0, -torch.inf).view(len(scores), -1)
    k = getattr(config, "num_experts_per_tok", None) or config.moe_topk
    return chosen(scores, k[0] if isinstance(k, list) else k).sort(-1).values


def watch_routers(model):
    """Per layer with a router, its logits and its bias, once the model has run."""
    seen = []
    for layer in model.model.layers:
        for module in layer.modules():
            if is_router(module):
                module.register_forward_hook(lambda router, _, out, layer=layer: seen.append((
                    logits_of(router, _[0].reshape(-1, _[0].shape[-1])), bias_of(router, layer))))
    return seen


def logits_of(router, x):
    for owner in (router, getattr(router, "wg", None), getattr(router, "layer", None)):
        if getattr(owner, "weight", None) is not None:
            bias = getattr(owner, "bias", None)
            return torch.nn.functional.linear(x.double(), owner.weight.double(), None if bias is None else bias.double())


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
    routed = watch_routers(model)
    out = model(tokens[:, :-1])
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
    if config.model_type in NOT_TRAINED:
        gradients = {}
    return {"config": text, "header": header, "loss": loss.item(),
            "chosen": [choice_of(config, logits.detach(), bias).tolist() for logits, bias in routed],
            "gradients": gradients}


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


if __name__ == "__main__":
    main()
