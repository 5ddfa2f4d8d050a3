"""Tiny random models of published families, made with transformers, for tests/engine/model/families_test.cpp.

    ./dev deps oracle
    build/oracle-venv/bin/python tests/reference/families.py            # writes families.json next to this file
    build/oracle-venv/bin/python tests/reference/families.py --check    # compares with it, writes nothing
    build/oracle-venv/bin/python tests/reference/families.py --only X   # writes case X, leaves the others

Other processors give other last digits, so a new family is written by --only.

No weights are stored: a parameter of a model has the number p of its place in the case's list, and its element i
is a function of (i, p), README.md's u(i, p): matrices 0.2 u, norm weights 1 + 0.1 u (or 0.1 u where the family
adds 1 itself), biases 0.1 u. Tokens are README.md's, too. Models run in float64 and eager attention; transformers
itself goes through float32 in norms, softmax and rotary tables.

Each case says in `model` which keys of a recipe describe it, and in `parameters` where each parameter of Sherd's
is in the family's own tensors (`parts`). Digests of gradients are of the family's tensors, in its own layout.
"""

import argparse
import json
import math
import pathlib
import sys

import torch
import transformers

HERE = pathlib.Path(__file__).resolve().parent
PINNED = "5.23.0"
B, S, V, D, F, H, G, K = 2, 40, 61, 40, 72, 4, 2, 16
LAYERS = 3
NUM_VALUES = 6


def hash32(i, p):
    h = (i * 2654435761 + p * 40503 + 12345) & 0xFFFFFFFF
    h ^= h >> 15
    h = (h * 2246822519) & 0xFFFFFFFF
    return h ^ (h >> 13)


def u(count, p):
    return torch.tensor([hash32(i, p) / 2.0**32 * 2.0 - 1.0 for i in range(count)], dtype=torch.float64)


# --- the families ---------------------------------------------------------------------------------------

SIZES = {"vocab_size": V, "hidden_size": D, "intermediate_size": F, "num_hidden_layers": LAYERS,
         "num_attention_heads": H, "num_key_value_heads": G, "max_position_embeddings": 64,
         "tie_word_embeddings": False, "attention_dropout": 0.0, "pad_token_id": None,
         "bos_token_id": None, "eos_token_id": None}
RECIPE = {"num_layers": LAYERS, "hidden_size": D, "num_attention_heads": H, "num_kv_heads": G, "ffn_hidden_size": F,
          "vocab_size": V, "max_seq_length": 64, "norm_eps": 1e-6}


def rope(theta=10000.0, kind="default", **more):
    return {"rope_parameters": {"rope_theta": theta, "rope_type": kind, **more}}


LONG = [round(1.0 + 0.3 * j, 2) for j in range(6)]  # 0.75 of a head of 16: 6 pairs
YARN = {"factor": 4.0, "original_max_position_embeddings": 16, "beta_fast": 8.0, "beta_slow": 1.0}

# name: (transformers' class, its configuration in addition to SIZES, keys of the recipe in addition to RECIPE)
FAMILIES = {
    "gpt2": ("GPT2", dict(vocab_size=V, n_embd=D, n_layer=LAYERS, n_head=H, n_positions=64, n_inner=F,
                          resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0, layer_norm_epsilon=1e-6),
             dict(norm="layernorm", positions="learned", activation="gelu", bias=True, tie_embeddings=True,
                  num_kv_heads=H)),
    "llama": ("Llama", dict(head_dim=10, rms_norm_eps=1e-6, **rope(100000.0)), dict(rope_theta=100000.0)),
    "llama3": ("Llama", dict(head_dim=K, rms_norm_eps=1e-6, tie_word_embeddings=True,
                             **rope(5e5, "llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0,
                                    original_max_position_embeddings=32)),
               dict(head_width=K, rope_theta=5e5, tie_embeddings=True, rope_scaling="llama3", rope_factor=8.0,
                    rope_original_length=32)),
    "llama_yarn": ("Llama", dict(head_dim=K, rms_norm_eps=1e-6, **rope(10000.0, "yarn", **YARN)),
                   dict(head_width=K, rope_scaling="yarn", rope_factor=4.0, rope_original_length=16,
                        rope_beta_fast=8.0)),
    "mistral": ("Mistral", dict(head_dim=K, rms_norm_eps=1e-6, sliding_window=7, **rope(1e6)),
                dict(head_width=K, rope_theta=1e6, window=7)),
    "qwen2": ("Qwen2", dict(rms_norm_eps=1e-6, **rope(1e6)), dict(rope_theta=1e6, qkv_bias=True)),
    "qwen3": ("Qwen3", dict(head_dim=K, rms_norm_eps=1e-6, tie_word_embeddings=True, **rope(1e6)),
              dict(head_width=K, rope_theta=1e6, qk_norm="head", tie_embeddings=True)),
    "phi3": ("Phi3", dict(rms_norm_eps=1e-6, sliding_window=9, resid_pdrop=0.0, embd_pdrop=0.0, **rope()),
             dict(window=9)),
    "phi4_mini": ("Phi3", dict(hidden_size=64, rms_norm_eps=1e-6, sliding_window=None, resid_pdrop=0.0,
                               embd_pdrop=0.0, original_max_position_embeddings=32,
                               **rope(10000.0, "longrope", short_factor=LONG, long_factor=[2 * f for f in LONG],
                                      partial_rotary_factor=0.75, original_max_position_embeddings=32)),
                  dict(hidden_size=64, rope_fraction=0.75, rope_scaling="longrope", rope_factor=2.0,
                       rope_original_length=32, rope_short_factors=LONG, rope_long_factors=[2 * f for f in LONG])),
    "smollm3": ("SmolLM3", dict(num_hidden_layers=4, rms_norm_eps=1e-6, no_rope_layers=[1, 1, 1, 0],
                                use_sliding_window=False, tie_word_embeddings=True, **rope(2e6)),
                dict(num_layers=4, rope_theta=2e6, rope_layers="1110", tie_embeddings=True)),
    "olmo2": ("Olmo2", dict(rms_norm_eps=1e-6, **rope(5e5)),
              dict(rope_theta=5e5, norm_placement="post", qk_norm="projection")),
    "olmo3": ("Olmo3", dict(num_hidden_layers=4, rms_norm_eps=1e-6, sliding_window=6,
                            layer_types=["sliding_attention"] * 3 + ["full_attention"],
                            rope_parameters={
                                "full_attention": dict(rope_theta=5e5, rope_type="yarn", **YARN),
                                "sliding_attention": dict(rope_theta=5e5, rope_type="default")}),
              dict(num_layers=4, rope_theta=5e5, norm_placement="post", qk_norm="projection", window=6,
                   window_layers="1110", window_rope_scaling=False, rope_scaling="yarn", rope_factor=4.0,
                   rope_original_length=16, rope_beta_fast=8.0)),
    "gemma": ("Gemma", dict(head_dim=K, num_key_value_heads=1, rms_norm_eps=1e-6, tie_word_embeddings=True,
                            hidden_activation="gelu_pytorch_tanh", **rope()),
              dict(head_width=K, num_kv_heads=1, norm_offset=1, activation="geglu", tie_embeddings=True,
                   embedding_scale=math.sqrt(D))),
    "gemma2": ("Gemma2", dict(head_dim=K, rms_norm_eps=1e-6, tie_word_embeddings=True, sliding_window=5,
                              query_pre_attn_scalar=20, attn_logit_softcapping=1.5, final_logit_softcapping=2.0,
                              layer_types=["sliding_attention", "full_attention", "sliding_attention"], **rope()),
               dict(head_width=K, norm_offset=1, activation="geglu", tie_embeddings=True, embedding_scale=math.sqrt(D),
                    norm_placement="sandwich", window=5, window_layers="10", attention_scale=20**-0.5,
                    attention_softcap=1.5, logits_softcap=2.0)),
    "gemma3": ("Gemma3", dict(head_dim=K, num_hidden_layers=4, rms_norm_eps=1e-6, tie_word_embeddings=True,
                              sliding_window=8, query_pre_attn_scalar=12,
                              layer_types=["sliding_attention"] * 2 + ["full_attention"] + ["sliding_attention"],
                              rope_parameters={
                                  "full_attention": dict(rope_theta=1e6, rope_type="linear", factor=8.0),
                                  "sliding_attention": dict(rope_theta=1e4, rope_type="default")}),
               dict(num_layers=4, head_width=K, norm_offset=1, activation="geglu", tie_embeddings=True,
                    embedding_scale=math.sqrt(D), norm_placement="sandwich", qk_norm="head", window=8,
                    window_layers="110", attention_scale=12**-0.5, rope_theta=1e6, rope_scaling="linear",
                    rope_factor=8.0, window_rope_theta=1e4, window_rope_scaling=False)),
    "stablelm": ("StableLm", dict(hidden_size=64, layer_norm_eps=1e-6, use_qkv_bias=True, hidden_dropout=0.0,
                                  qk_layernorm=False, use_parallel_residual=False,
                                  **rope(10000.0, partial_rotary_factor=0.25)),
                 dict(hidden_size=64, norm="layernorm", norm_bias=True, qkv_bias=True, rope_fraction=0.25)),
    "stablelm_12b": ("StableLm", dict(hidden_size=64, layer_norm_eps=1e-6, use_qkv_bias=False, hidden_dropout=0.0,
                                      qk_layernorm=True, use_parallel_residual=True,
                                      **rope(10000.0, partial_rotary_factor=0.25)),
                     dict(hidden_size=64, norm="layernorm", norm_bias=True, qk_norm="per_head",
                          block="parallel_one_norm", rope_fraction=0.25)),
    "gpt_neox": ("GPTNeoX", dict(hidden_size=64, layer_norm_eps=1e-6, hidden_act="gelu", use_parallel_residual=True,
                                 hidden_dropout=0.0, attention_bias=True, **rope(10000.0, partial_rotary_factor=0.25)),
                 dict(hidden_size=64, num_kv_heads=H, norm="layernorm", bias=True, activation="gelu_erf",
                      block="parallel", rope_fraction=0.25)),
    "starcoder2": ("Starcoder2", dict(norm_epsilon=1e-6, use_bias=True, sliding_window=9, residual_dropout=0.0,
                                      embedding_dropout=0.0, hidden_act="gelu_pytorch_tanh", tie_word_embeddings=True,
                                      **rope(100000.0)),
                   dict(norm="layernorm", bias=True, activation="gelu", tie_embeddings=True, rope_theta=100000.0,
                        window=9)),
    "granite": ("Granite", dict(rms_norm_eps=1e-6, embedding_multiplier=6.0, residual_multiplier=0.22,
                                attention_multiplier=0.2, logits_scaling=4.0, tie_word_embeddings=True, **rope()),
                dict(embedding_scale=6.0, residual_scale=0.22, attention_scale=0.2, logits_scale=0.25,
                     tie_embeddings=True)),
    "cohere": ("Cohere", dict(layer_norm_eps=1e-6, logit_scale=0.5, tie_word_embeddings=True, **rope()),
               dict(norm="layernorm", block="parallel_one_norm", logits_scale=0.5, tie_embeddings=True)),
    "command_r_plus": ("Cohere", dict(layer_norm_eps=1e-6, logit_scale=0.5, tie_word_embeddings=True, use_qk_norm=True,
                                      **rope()),
                       dict(norm="layernorm", block="parallel_one_norm", qk_norm="per_head", logits_scale=0.5,
                            tie_embeddings=True)),
    "cohere2": ("Cohere2", dict(num_hidden_layers=4, layer_norm_eps=1e-6, logit_scale=0.5, sliding_window=6,
                                tie_word_embeddings=True,
                                layer_types=["sliding_attention"] * 3 + ["full_attention"], **rope()),
                dict(num_layers=4, norm="layernorm", block="parallel_one_norm", logits_scale=0.5, window=6,
                     window_layers="1110", rope_layers="1110", tie_embeddings=True)),
    "glm4": ("Glm4", dict(head_dim=K, rms_norm_eps=1e-6, attention_bias=True,
                          **rope(10000.0, partial_rotary_factor=0.5)),
             dict(head_width=K, qkv_bias=True, norm_placement="sandwich", rope_fraction=0.5)),
    "glm": ("Glm", dict(head_dim=K, rms_norm_eps=1e-6, attention_bias=True, **rope(10000.0, partial_rotary_factor=0.5)),
            dict(head_width=K, qkv_bias=True, rope_fraction=0.5)),
    "ernie4_5": ("Ernie4_5", dict(head_dim=K, rms_norm_eps=1e-6, use_bias=True, **rope(5e5)),
                 dict(head_width=K, rope_theta=5e5, bias=True, norm_bias=False)),
    "arcee": ("Arcee", dict(rms_norm_eps=1e-6, **rope()), dict(activation="relu2")),
    "exaone4": ("Exaone4", dict(num_hidden_layers=4, rms_norm_eps=1e-6, sliding_window=6, **rope(1e6),
                                layer_types=["sliding_attention"] * 3 + ["full_attention"]),
                dict(num_layers=4, rope_theta=1e6, norm_placement="post", qk_norm="head", window=6,
                     window_layers="1110", rope_layers="1110")),
    "nemotron": ("Nemotron", dict(head_dim=K, norm_eps=1e-6, hidden_act="relu2", **rope(10000.0, partial_rotary_factor=0.5)),
                 dict(head_width=K, norm="layernorm", norm_bias=True, norm_offset=1, activation="relu2",
                      rope_fraction=0.5)),
}
ONE_PLUS = {"gemma", "gemma2", "gemma3", "nemotron"}  # norms that multiply by 1 + weight
INTERLEAVED = {"cohere", "command_r_plus", "cohere2", "glm", "glm4", "ernie4_5"}           # pairs (2j, 2j + 1)


def build(name):
    kind, config, recipe = FAMILIES[name]
    text = kind == "Gemma3"
    config_class = getattr(transformers, kind + ("TextConfig" if text else "Config"))
    sizes = {} if kind == "GPT2" else dict(SIZES)
    if kind == "GPTNeoX":
        sizes.pop("num_key_value_heads")
    c = config_class(**{**sizes, **config})
    c._attn_implementation = "eager"
    torch.manual_seed(0)
    model = getattr(transformers, kind + ("LMHeadModel" if kind == "GPT2" else "ForCausalLM"))(c).double().eval()
    return model, {**RECIPE, **recipe}


def is_norm(name):
    return "norm" in name or ".ln_" in name


def set_weights(name, model):
    """The family's parameters, numbered in the order of their names."""
    numbered = sorted(model.named_parameters())
    for p, (parameter, tensor) in enumerate(numbered):
        values = 0.2 * u(tensor.numel(), p)
        if tensor.dim() == 1:
            one = is_norm(parameter) and parameter.endswith("weight") and name not in ONE_PLUS
            values = 0.5 * values + (1.0 if one else 0.0)
        with torch.no_grad():
            tensor.copy_(values.float().double().reshape(tensor.shape))
    return numbered


# --- where Sherd's parameters are ------------------------------------------------------------------------


def parts_of(name, recipe, sherd):
    """[(the family's tensor, what of it)] for one of Sherd's parameters; README.md says what the words mean."""
    if name == "gpt2":
        return gpt2_parts(sherd)
    if name == "gpt_neox":
        return neox_parts(sherd)
    tied = recipe.get("tie_embeddings", False)
    edges = {"embedding.token.weight": "model.embed_tokens.weight", "head.weight": "lm_head.weight",
             "final_norm.weight": "model.norm.weight", "final_norm.bias": "model.norm.bias"}
    if sherd in edges:
        assert not (tied and sherd == "head.weight")
        return [(edges[sherd], "rows")]
    _, i, rest = sherd.split(".", 2)
    site, which = rest.rsplit(".", 1)
    x = f"model.layers.{i}."
    sandwich, post = recipe.get("norm_placement") == "sandwich", recipe.get("norm_placement") == "post"
    norm2 = "pre_feedforward_layernorm" if sandwich else "post_attention_layernorm"
    after = {"attention.norm": "post_attention_layernorm", "mlp.norm": "post_feedforward_layernorm"}
    if name == "glm4":
        norm2 = "post_attention_layernorm"
        after = {"attention.norm": "post_self_attn_layernorm", "mlp.norm": "post_mlp_layernorm"}
    if site in ("norm1", "norm2", "attention.norm", "mlp.norm"):
        assert not (post and site in ("norm1", "norm2"))
        return [(x + {"norm1": "input_layernorm", "norm2": norm2, **after}[site] + "." + which, "rows")]
    attention, mlp = x + "self_attn.", x + "mlp."
    if site == "attention.qkv":
        if name.startswith("phi"):
            return [(attention + "qkv_proj." + which, "q"), (attention + "qkv_proj." + which, "k"),
                    (attention + "qkv_proj." + which, "v")]
        return [(attention + f"{n}_proj." + which, n) for n in "qkv"]
    if site in ("attention.query_norm", "attention.key_norm"):
        n = "q" if "query" in site else "k"
        if name == "stablelm_12b":
            heads = range(H if n == "q" else G)
            return [(attention + f"{n}_layernorm.norms.{head}." + which, "head") for head in heads]
        if name == "command_r_plus":
            return [(attention + f"{n}_norm." + which, "matrix of heads")]
        return [(attention + f"{n}_norm." + which, "head" if recipe["qk_norm"] == "head" else n)]
    if site == "attention.output":
        return [(attention + "o_proj." + which, "rows")]
    if site == "mlp.up":
        if name.startswith("phi") or name.startswith("glm"):
            return [(mlp + "gate_up_proj." + which, "rows")]
        if name == "starcoder2":
            return [(mlp + "c_fc." + which, "rows")]
        if name in ("nemotron", "arcee"):
            return [(mlp + "up_proj." + which, "rows")]
        return [(mlp + "gate_proj." + which, "rows"), (mlp + "up_proj." + which, "rows")]
    return [(mlp + ("c_proj." if name == "starcoder2" else "down_proj.") + which, "rows")]


def gpt2_parts(sherd):
    edges = {"embedding.token.weight": "transformer.wte.weight", "embedding.position.weight": "transformer.wpe.weight",
             "final_norm.weight": "transformer.ln_f.weight", "final_norm.bias": "transformer.ln_f.bias"}
    if sherd in edges:
        return [(edges[sherd], "rows")]
    _, i, rest = sherd.split(".", 2)
    site, which = rest.rsplit(".", 1)
    names = {"norm1": "ln_1", "norm2": "ln_2", "attention.qkv": "attn.c_attn", "attention.output": "attn.c_proj",
             "mlp.up": "mlp.c_fc", "mlp.down": "mlp.c_proj"}
    transposed = which == "weight" and not site.startswith("norm")
    return [(f"transformer.h.{i}.{names[site]}.{which}", "transposed" if transposed else "rows")]


def neox_parts(sherd):
    edges = {"embedding.token.weight": "gpt_neox.embed_in.weight", "head.weight": "embed_out.weight",
             "final_norm.weight": "gpt_neox.final_layer_norm.weight", "final_norm.bias": "gpt_neox.final_layer_norm.bias"}
    if sherd in edges:
        return [(edges[sherd], "rows")]
    _, i, rest = sherd.split(".", 2)
    site, which = rest.rsplit(".", 1)
    names = {"norm1": "input_layernorm", "norm2": "post_attention_layernorm",
             "attention.qkv": "attention.query_key_value", "attention.output": "attention.dense",
             "mlp.up": "mlp.dense_h_to_4h", "mlp.down": "mlp.dense_4h_to_h"}
    tensor = f"gpt_neox.layers.{i}.{names[site]}.{which}"
    if site == "attention.qkv":
        return [(tensor, "q of three"), (tensor, "k of three"), (tensor, "v of three")]
    return [(tensor, "rows")]


# --- Sherd's parameters, in its order --------------------------------------------------------------------


def sherd_names(recipe):
    layer_norm = recipe.get("norm") == "layernorm"
    bias = recipe.get("bias", False)
    norm_bias = recipe.get("norm_bias", bias and layer_norm)
    placement, block = recipe.get("norm_placement", "pre"), recipe.get("block", "sequential")
    tied = recipe.get("tie_embeddings", False)

    def norm(site):
        return [site + ".weight"] + ([site + ".bias"] if norm_bias else [])

    def linear(site, key):
        return [site + ".weight"] + ([site + ".bias"] if recipe.get(key, bias) else [])

    out = ["embedding.token.weight"]
    if recipe.get("positions") == "learned":
        out.append("embedding.position.weight")
    for i in range(recipe["num_layers"]):
        b = f"block.{i}."
        if placement != "post":
            out += norm(b + "norm1")
        out += linear(b + "attention.qkv", "qkv_bias")
        if recipe.get("qk_norm", "none") != "none":
            out += [b + "attention.query_norm.weight", b + "attention.key_norm.weight"]
        out += linear(b + "attention.output", "output_bias")
        if placement != "pre":
            out += norm(b + "attention.norm")
        if placement != "post" and block != "parallel_one_norm":
            out += norm(b + "norm2")
        out += linear(b + "mlp.up", "mlp_bias") + linear(b + "mlp.down", "mlp_bias")
        if placement != "pre":
            out += norm(b + "mlp.norm")
    return out + norm("final_norm") + ([] if tied else ["head.weight"])


def tokens_of(kind):
    return torch.tensor([hash32(t, kind) % V for t in range(B * S)]).reshape(B, S)


def case_of(name):
    model, recipe = build(name)
    numbered = set_weights(name, model)
    logits = model(input_ids=tokens_of(1000), use_cache=False).logits
    loss = torch.nn.functional.cross_entropy(logits.double().reshape(-1, V), tokens_of(2000).reshape(-1))
    loss.backward()
    known = dict(numbered)
    if name == "gpt_neox" and "embed_out.weight" not in known:
        known["embed_out.weight"] = known["lm_head.weight"]
    numbers = {parameter: p for p, (parameter, _) in enumerate(numbered)}
    if "lm_head.weight" in numbers:
        numbers["embed_out.weight"] = numbers["lm_head.weight"]
    tensors, used = {}, set()
    parameters = []
    for sherd in sherd_names(recipe):
        parts = parts_of(name, recipe, sherd)
        parameters.append({"name": sherd, "parts": [list(part) for part in parts]})
        used.update(numbers[tensor] for tensor, _ in parts)
    left = [parameter for parameter, p in numbers.items() if p not in used]
    assert not left, f"{name}: {left} are no parameters of Sherd's"
    for entry in parameters:
        for tensor, _ in entry["parts"]:
            p, gradient = numbers[tensor], known[tensor].grad.reshape(-1)
            at = [(k * (gradient.numel() - 1)) // (NUM_VALUES - 1) for k in range(NUM_VALUES)]
            tensors[tensor] = {
                "number": p, "shape": list(known[tensor].shape),
                "norm": gradient.norm().item(), "projection": (gradient @ u(gradient.numel(), 3000 + p)).item(),
                "indices": at, "gradient": gradient[at].tolist()}
    flat = logits.detach().reshape(-1)
    at = [(k * (flat.numel() - 1)) // 31 for k in range(32)]
    return {"model": recipe, "interleaved": name in INTERLEAVED, "one_plus": name in ONE_PLUS,
            "loss": loss.item(), "logits_norm": flat.norm().item(), "logits_indices": at,
            "logits": flat[at].tolist(), "parameters": parameters, "tensors": tensors}


def text_of(cases):
    """One line per parameter or tensor."""
    lines = ["{", f' "generator": "tests/reference/families.py, transformers {PINNED}",',
             f' "batch": {{"sequences": {B}, "positions": {S}}},', ' "cases": {']
    for number, (name, case) in enumerate(cases.items()):
        lines.append(f'  "{name}": {{')
        for key in ("model", "interleaved", "one_plus", "loss", "logits_norm", "logits_indices", "logits"):
            lines.append(f'   "{key}": {json.dumps(case[key])},')
        lines.append('   "parameters": [')
        lines.append(",\n".join("    " + json.dumps(entry) for entry in case["parameters"]) + "],")
        lines.append('   "tensors": {')
        lines.append(",\n".join(f'    "{tensor}": ' + json.dumps(entry) for tensor, entry in case["tensors"].items()))
        lines.append("   }}" + ("," if number + 1 < len(cases) else ""))
    return "\n".join(lines + [" }", "}"]) + "\n"


def main():
    arguments = argparse.ArgumentParser()
    arguments.add_argument("--check", action="store_true")
    arguments.add_argument("--only", nargs="*")
    arguments = arguments.parse_args()
    assert transformers.__version__ == PINNED, transformers.__version__
    torch.set_num_threads(1)
    cases = {}
    for name in arguments.only or FAMILIES:
        cases[name] = case_of(name)
        print(f"{name}: loss {cases[name]['loss']:.6f}", flush=True)
    path = HERE / "families.json"
    if arguments.only:
        old = json.loads(path.read_text())["cases"] | cases
        cases = {name: old[name] for name in FAMILIES}
    if not arguments.check:
        path.write_text(text_of(cases))
    elif path.read_text() != text_of(cases):
        sys.exit(f"{path} differs from what this made")


main()
