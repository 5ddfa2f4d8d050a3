"""config_variants.py FILE: variants of config.json of every family that Sherd reads, and what `transformers` makes of each.

For each family a tiny model as two folders have it, with sizes alone and with every key that the class
writes, and each of these changed:

  every key    absent, null, and with other values; keys of other families, which the class may ignore
  rotary       every table of frequencies in both places, in one and the other, in both and differing, with
               and without what belongs in it, under rope_type and under type
  windows      layer types, windows, patterns and the switches that turn them on and off

Writes one JSON object per line, the first of which names the version. A variant is a family's base with keys
that are set or dropped, and either the log-likelihood that `transformers` gives to a fixed row of tokens, or why it
refuses. Weights and tokens are the formulas of folders.py; `tensors` numbers the sets of names and shapes.

    config_variants.py FILE [FAMILY...]            writes them (a quarter of an hour)
    SHERD_CONFIG_VARIANTS=FILE build/cpu/tests/engine_huggingface_tests --gtest_filter=ConfigVariantsSlow.*
                                                   writes FILE.sherd, what Sherd makes of each
    config_variants.py FILE --compare              prints where both differ, and counts
    config_variants.py FILE --select CHOSEN JSON   writes those that tell something apart: one for each value
                                                   of a family, and those named in CHOSEN, [base, name] a line
    config_variants.py FILE --add JSON             the same for families that JSON lacks, added to it
Needs `./dev deps oracle`.
"""
import collections
import copy
import json
import logging
import pathlib
import sys
import tempfile
import zlib

import torch
import transformers

TOKENS = 33
SIZES = dict(vocab_size=56, hidden_size=32, intermediate_size=48, num_hidden_layers=4, num_attention_heads=4,
             num_key_value_heads=2, max_position_embeddings=64)
NEOX = {key: value for key, value in SIZES.items() if key != "num_key_value_heads"}
OLD_NAMES = dict(vocab_size=56, n_embd=32, n_layer=4, n_head=4, n_positions=64)
MINISTRAL3 = dict(rope_type="yarn", rope_theta=10000.0, factor=4.0, original_max_position_embeddings=64,
                  llama_4_scaling_beta=0.1)
# What a family's file must have in addition to the sizes, so that both can read it.
FAMILIES = {
    "gpt2": OLD_NAMES | dict(eos_token_id=0, bos_token_id=0),
    "llama": SIZES, "mistral": SIZES, "ministral": SIZES | dict(head_dim=8), "qwen2": SIZES,
    "ministral3": SIZES | dict(head_dim=8, rope_parameters=MINISTRAL3),
    "qwen3": SIZES | dict(head_dim=16),
    "smollm3": SIZES | dict(pad_token_id=0), "granite": SIZES,
    "granitemoehybrid": SIZES | dict(num_local_experts=0, shared_intermediate_size=48, position_embedding_type="rope",
                                     layer_types=["attention"] * 4, mamba_n_heads=4),
    "phi3": SIZES | dict(pad_token_id=0),
    "gemma": SIZES | dict(head_dim=16), "gemma2": SIZES | dict(head_dim=16, sliding_window=5),
    "gemma3_text": SIZES | dict(head_dim=16, sliding_window=5, sliding_window_pattern=2),
    "olmo2": SIZES, "olmo3": SIZES | dict(rope_theta=10000.0, sliding_window=5),
    "gpt_neox": NEOX, "stablelm": SIZES, "starcoder2": SIZES,
    "cohere": SIZES | dict(rope_theta=10000.0), "cohere2": SIZES | dict(rope_theta=10000.0, sliding_window=5),
    "glm": SIZES | dict(head_dim=16, pad_token_id=0), "glm4": SIZES | dict(head_dim=16, pad_token_id=0),
    "nemotron": SIZES, "ernie4_5": SIZES | dict(head_dim=16), "seed_oss": SIZES | dict(head_dim=16), "arcee": SIZES,
    "exaone4": SIZES | dict(sliding_window=5), "internlm3": SIZES | dict(head_dim=16), "helium": SIZES | dict(head_dim=8),
}
# Without these a file is no model's; what the class has in their place is a large one.
MUST_BE_SAID = {"model_type", "vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads",
                "shared_intermediate_size", *OLD_NAMES}

SOME_WINDOWS = ["sliding_attention", "full_attention", "full_attention", "sliding_attention"]
VALUES = {
    "attention_bias": [True, False], "mlp_bias": [True, False], "use_bias": [True, False], "bias": [True, False],
    "qkv_bias": [True, False], "use_qkv_bias": [True, False], "attention_out_bias": [True, False],
    "use_qk_norm": [True, False], "qk_layernorm": [True, False], "tie_word_embeddings": [True, False],
    "head_dim": [16, 8, 10], "num_key_value_heads": [1, 4, 2], "hidden_size": [64], "num_attention_heads": [2],
    "num_hidden_layers": [3], "intermediate_size": [32], "vocab_size": [60], "max_position_embeddings": [40, 32],
    "n_inner": [64], "n_ctx": [32], "n_head": [2], "ffn_dim": [64], "rotary_dim": [4],
    "rms_norm_eps": [1e-2], "layer_norm_eps": [1e-2], "layer_norm_epsilon": [1e-2], "norm_epsilon": [1e-2], "norm_eps": [1e-2],
    "hidden_act": ["gelu", "silu", "gelu_new", "gelu_pytorch_tanh", "relu", "relu2", "swish"],
    "hidden_activation": ["gelu", "gelu_pytorch_tanh", "silu"],
    "activation_function": ["gelu", "gelu_new", "relu", "gelu_pytorch_tanh"],
    "rope_theta": [500.0, 10000], "rotary_emb_base": [500.0], "rope_local_base_freq": [500.0],
    "global_rope_theta": [500.0], "local_rope_theta": [500.0], "rotary_pct": [0.5, 1.0],
    "partial_rotary_factor": [0.5, 1.0, 0.25], "rope_interleaved": [True, False], "rope_percent": [0.5],
    "rope_ratio": [2], "no_rope_layers": [[1, 0, 1, 1], [0, 0, 0, 0], []], "no_rope_layer_interval": [2, 1],
    "original_max_position_embeddings": [16],
    "sliding_window": [5, 0, 1, 100], "use_sliding_window": [True, False], "max_window_layers": [2, 0, 4],
    "sliding_window_pattern": [2, 3, 1, "LLLG"], "_sliding_window_pattern": [2, 3],
    "layer_types": [SOME_WINDOWS, ["full_attention"] * 4, ["sliding_attention"] * 4, ["full_attention"] * 3],
    "attention_chunk_size": [4], "use_bidirectional_attention": [True, False], "is_decoder": [True], "is_causal": [False],
    "query_pre_attn_scalar": [8, 256], "attn_logit_softcapping": [2.0], "final_logit_softcapping": [2.0],
    "attention_multiplier": [0.25, 1.0], "embedding_multiplier": [3.0], "residual_multiplier": [0.5],
    "logits_scaling": [2.0], "logit_scale": [0.5], "scale_emb": [2.0], "scale_depth": [1.4], "mup": [True],
    "scale_attn_weights": [False, True], "scale_attn_by_inverse_layer_idx": [True, False],
    "reorder_and_upcast_attn": [True], "add_cross_attention": [True],
    "use_parallel_residual": [True, False], "parallel_attn": [True], "clip_qkv": [0.1], "norm_type": ["rms_norm"],
    "mlp_type": ["gated"], "norm_after": [True], "position_embedding_type": ["nope", "rope"], "num_local_experts": [2],
    "shared_intermediate_size": [32], "partial_rotary": [0.5], "qk_norm": [True], "attn_bias": [True],
    "per_layer_config": [{"1": {"sliding_window": 3}}, {}], "pretraining_tp": [2], "use_cache": [False],
    "dtype": ["bfloat16"], "torch_dtype": ["float16"], "attention_dropout": [0.1], "initializer_range": [0.5],
    "layer_norm_bias": [False], "rope_scaling": [{}], "rope_parameters": [{}], "num_experts": [4], "nope_layer_interval": [2],
    "full_attn_layers": [[0]], "chunk_size_feed_forward": [4], "tie_last_hidden_states": [True], "hidden_dropout": [0.1],
    "word_embed_proj_dim": [16], "type_vocab_size": [2], "layers_block_type": [["attention"] * 4],
}

LISTS = dict(short_factor=[1.0, 1.25, 1.5, 2.0], long_factor=[1.0, 2.0, 4.0, 8.0])
WIDE_LISTS = dict(short_factor=[1.0, 1.25, 1.5, 2.0, 2.5, 3.0, 3.5, 4.0], long_factor=[1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0])
HALF_LISTS = dict(short_factor=[1.0, 1.5], long_factor=[2.0, 8.0])
LLAMA3 = dict(rope_type="llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_position_embeddings=16)
YARN = dict(rope_type="yarn", factor=4.0, original_max_position_embeddings=16)
LINEAR = dict(rope_type="linear", factor=2.0)
DEFAULT = dict(rope_type="default")


def changed(table, drop=(), **more):
    return {key: value for key, value in (table | more).items() if key not in (drop if isinstance(drop, tuple) else (drop,))}


TABLES = {
    "default": DEFAULT, "default theta": DEFAULT | dict(rope_theta=500.0), "default null theta": DEFAULT | dict(rope_theta=None),
    "default factor": DEFAULT | dict(factor=2.0), "theta alone": dict(rope_theta=500.0),
    "default half": DEFAULT | dict(partial_rotary_factor=0.5), "default theta half": DEFAULT | dict(rope_theta=500.0, partial_rotary_factor=0.5),
    "default null half": DEFAULT | dict(partial_rotary_factor=None), "default full": DEFAULT | dict(partial_rotary_factor=1.0),
    "linear": LINEAR, "linear by type": dict(type="linear", factor=2.0), "linear type default": dict(type="linear", rope_type="default", factor=2.0),
    "default type linear": dict(type="default", rope_type="linear", factor=2.0), "linear null rope_type": dict(type="linear", rope_type=None, factor=2.0),
    "linear no factor": dict(rope_type="linear"), "linear null factor": dict(rope_type="linear", factor=None), "linear one": LINEAR | dict(factor=1.0),
    "linear half factor": LINEAR | dict(factor=0.5), "linear theta": LINEAR | dict(rope_theta=500.0), "linear half": LINEAR | dict(partial_rotary_factor=0.5),
    "linear length": LINEAR | dict(original_max_position_embeddings=16), "no type": dict(factor=2.0),
    "dynamic": dict(rope_type="dynamic", factor=2.0), "dynamic by type": dict(type="dynamic", factor=2.0), "dynamic no factor": dict(type="dynamic"),
    "dynamic length": dict(rope_type="dynamic", factor=2.0, original_max_position_embeddings=16),
    "llama3": LLAMA3, "llama3 by type": changed(LLAMA3, "rope_type", type="llama3"), "llama3 no low": changed(LLAMA3, "low_freq_factor"),
    "llama3 no high": changed(LLAMA3, "high_freq_factor"), "llama3 no factor": changed(LLAMA3, "factor"),
    "llama3 no length": changed(LLAMA3, "original_max_position_embeddings"), "llama3 other": LLAMA3 | dict(low_freq_factor=0.5, high_freq_factor=2.0),
    "llama3 theta": LLAMA3 | dict(rope_theta=500.0), "llama3 half": LLAMA3 | dict(partial_rotary_factor=0.5), "llama3 null length": LLAMA3 | dict(original_max_position_embeddings=None),
    "yarn": YARN, "yarn by type": changed(YARN, "rope_type", type="yarn"), "yarn no length": changed(YARN, "original_max_position_embeddings"),
    "yarn no factor": changed(YARN, "factor"), "yarn null factor": YARN | dict(factor=None), "yarn attention": YARN | dict(attention_factor=1.3),
    "yarn null attention": YARN | dict(attention_factor=None), "yarn no attention": YARN | dict(attention_factor=0.0), "yarn one": YARN | dict(factor=1.0),
    "yarn mscales": YARN | dict(mscale=0.7, mscale_all_dim=1.0), "yarn mscale": YARN | dict(mscale=0.7), "yarn all": YARN | dict(mscale_all_dim=0.7),
    "yarn mscale zero": YARN | dict(mscale=0.7, mscale_all_dim=0.0), "yarn attention mscales": YARN | dict(attention_factor=1.3, mscale=0.7, mscale_all_dim=1.0),
    "yarn betas": YARN | dict(beta_fast=4.0, beta_slow=0.5), "yarn null betas": YARN | dict(beta_fast=None, beta_slow=None),
    "yarn zero betas": YARN | dict(beta_fast=0, beta_slow=0), "yarn exact": YARN | dict(truncate=False, beta_fast=2, beta_slow=0.5),
    "yarn truncate": YARN | dict(truncate=True, beta_fast=2, beta_slow=0.5), "yarn null truncate": YARN | dict(truncate=None, beta_fast=2, beta_slow=0.5),
    "yarn half": YARN | dict(partial_rotary_factor=0.5), "yarn unknown": YARN | dict(new_knob=1.0), "yarn extrapolation": YARN | dict(extrapolation_factor=2.0),
    "yarn finetuned": YARN | dict(finetuned=True), "yarn null length": YARN | dict(original_max_position_embeddings=None),
    "longrope": dict(rope_type="longrope") | LISTS, "longrope wide": dict(rope_type="longrope") | WIDE_LISTS,
    "longrope long": dict(rope_type="longrope", original_max_position_embeddings=16) | LISTS,
    "longrope wide long": dict(rope_type="longrope", original_max_position_embeddings=16) | WIDE_LISTS,
    "longrope factor": dict(rope_type="longrope", original_max_position_embeddings=16, factor=2.0) | LISTS,
    "longrope attention": dict(rope_type="longrope", original_max_position_embeddings=16, attention_factor=1.3) | LISTS,
    "longrope by type": dict(type="longrope", original_max_position_embeddings=16) | LISTS, "su": dict(type="su", original_max_position_embeddings=16) | LISTS,
    "longrope yarn": dict(type="yarn", original_max_position_embeddings=16) | LISTS, "longrope no long": changed(dict(rope_type="longrope") | LISTS, "long_factor"),
    "longrope half": dict(rope_type="longrope", partial_rotary_factor=0.5, original_max_position_embeddings=16) | HALF_LISTS,
    "proportional": dict(rope_type="proportional", partial_rotary_factor=0.5), "mrope": dict(type="mrope", mrope_section=[1, 1, 2]),
    "mrope default": dict(rope_type="default", type="default", mrope_section=[1, 1, 2]), "other": dict(rope_type="ntk", factor=2.0),
}
PLACES = {
    "old": lambda t: dict(rope_scaling=t),
    "old and theta": lambda t: dict(rope_scaling=t, rope_theta=700.0),
    "new": lambda t: dict(rope_parameters=t),
    "new and theta": lambda t: dict(rope_parameters=t, rope_theta=700.0),
    "new and half": lambda t: dict(rope_parameters=t, partial_rotary_factor=0.5),
    "old and half": lambda t: dict(rope_scaling=t, partial_rotary_factor=0.5),
    "old over new": lambda t: dict(rope_scaling=t, rope_parameters=dict(rope_type="default", rope_theta=300.0)),
    "new under linear": lambda t: dict(rope_scaling=dict(rope_type="linear", factor=3.0), rope_parameters=t),
    "new under nothing": lambda t: dict(rope_scaling={}, rope_parameters=t),
    "new under null": lambda t: dict(rope_scaling=None, rope_parameters=t),
    "old under null": lambda t: dict(rope_scaling=t, rope_parameters=None),
    "old with length": lambda t: dict(rope_scaling=t, original_max_position_embeddings=24),
    "new with length": lambda t: dict(rope_parameters=t, original_max_position_embeddings=24),
    "old with null length": lambda t: dict(rope_scaling=t, original_max_position_embeddings=None),
    "by layer": lambda t: dict(rope_parameters=dict(full_attention=t, sliding_attention=dict(rope_type="default", rope_theta=400.0))),
    "windowed layers": lambda t: dict(rope_parameters=dict(full_attention=dict(rope_type="default"), sliding_attention=t)),
    "full layers alone": lambda t: dict(rope_parameters=dict(full_attention=t)),
    "by layer under linear": lambda t: dict(rope_scaling=dict(rope_type="linear", factor=3.0), rope_parameters=dict(full_attention=t, sliding_attention=dict(rope_type="default"))),
    "by layer with local": lambda t: dict(rope_parameters=dict(full_attention=t), rope_local_base_freq=300.0, rope_theta=700.0),
    "neox": lambda t: dict(rope_scaling=t, rotary_pct=0.5, rotary_emb_base=700.0),
}
# Families whose reading of these tables is code of their own; of the others every third combination is taken.
ROTARY_OF_THEIR_OWN = ("llama", "phi3", "gemma3_text", "olmo3", "ministral3")


def keys_of(family, config):
    """Each key absent, null and with other values, alone."""
    for key in config:
        if key not in MUST_BE_SAID:
            yield f"no {key}", {}, [key]
    for key in sorted(set(VALUES) | set(config) - {"model_type"}):
        for value in [None] + VALUES.get(key, []):
            yield f"{key} = {json.dumps(value)}", {key: value}, []


def rotary_of(family):
    for table, content in TABLES.items():
        for place, form in PLACES.items():
            if family not in ROTARY_OF_THEIR_OWN and zlib.crc32(f"{family} {table} {place}".encode()) % 3:
                continue
            yield f"{place}: {table}", form(copy.deepcopy(content)), ["rope_theta", "rope_parameters"]


def windows_of(family):
    types = {"": {}, "types ": dict(layer_types=SOME_WINDOWS), "full ": dict(layer_types=["full_attention"] * 4),
             "windowed ": dict(layer_types=["sliding_attention"] * 4), "null types ": dict(layer_types=None)}
    windows = {"": {}, "window ": dict(sliding_window=6), "null window ": dict(sliding_window=None), "no window ": "sliding_window"}
    switches = {"": {}, "on ": dict(use_sliding_window=True), "off ": dict(use_sliding_window=False)}
    others = {"": {}, "from 2": dict(max_window_layers=2), "from 0": dict(max_window_layers=0), "of 2": dict(sliding_window_pattern=2),
              "of 3": dict(sliding_window_pattern=3), "LG": dict(sliding_window_pattern="LG"), "rope layers": dict(no_rope_layers=[1, 0, 1, 0])}
    for a, one in types.items():
        for b, two in windows.items():
            for c, three in switches.items():
                for d, four in others.items():
                    name = a + b + c + d
                    gone = [two] if isinstance(two, str) else []
                    if name and (family in ("qwen2", "smollm3", "cohere2", "gemma3_text", "exaone4") or
                                 not zlib.crc32(f"{family} {name}".encode()) % 4):
                        yield "layers: " + name.strip(), one | (two if not gone else {}) | three | four, gone


class Oracle:
    def __init__(self):
        self.folder = tempfile.TemporaryDirectory()
        self.path = pathlib.Path(self.folder.name)
        self.values = {}

    def fill(self, name, parameter):
        key = name, tuple(parameter.shape)
        if key not in self.values:
            i = torch.arange(parameter.numel(), dtype=torch.int64)
            n = sum(ord(c) * p for p, c in enumerate(name, 1))
            k = ((i * 7919 + n * 104729) % 2**32 >> 7) % 255 - 127
            is_norm = parameter.dim() == 1 and name.endswith(".weight")
            self.values[key] = (1 + (k % 17 - 8) / 64 if is_norm else k / 512).reshape(parameter.shape)
        parameter.copy_(self.values[key])

    def outcome(self, config):
        """{"score", "tensors"} or {"refused"}."""
        (self.path / "config.json").write_text(json.dumps(config))
        try:
            with torch.no_grad():
                read = transformers.AutoConfig.from_pretrained(self.path)
                model = transformers.AutoModelForCausalLM.from_config(read, attn_implementation="eager", dtype=torch.float32).eval()
                shapes = {}
                for name, parameter in model.named_parameters():
                    if config["model_type"] == "gpt_neox":
                        name = name.replace("lm_head", "embed_out")  # as files have it
                    shapes[name] = list(parameter.shape)
                    self.fill(name, parameter)
                tokens = torch.tensor([[(3 * t * t + 7 * t) % read.vocab_size for t in range(TOKENS)]])
                logits = model.double()(tokens, use_cache=False).logits[0]
                score = torch.log_softmax(logits, -1)[:-1].gather(1, tokens[0, 1:, None]).sum().item()
        except Exception as error:  # whatever it is, the folder has no meaning there
            return {"refused": f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"[:160]}
        if score != score:
            return {"refused": "its logits aren't finite"}
        return {"score": score, "names": shapes}


def bases():
    for family, sizes in FAMILIES.items():
        yield family, {"model_type": family} | sizes
    for family, sizes in FAMILIES.items():
        read = transformers.AutoConfig.for_model(family, **copy.deepcopy(sizes))
        full = json.loads(read.to_json_string(use_diff=False)) | {"model_type": family}
        whole = {key: value for key, value in full.items() if not key.startswith("_")}
        yield family, json.loads(json.dumps(whole).replace("Infinity", "1e9"))


def applied(base, entry):
    config = {key: value for key, value in base.items() if key not in entry.get("drop", [])}
    return config | entry.get("set", {})


def variants(number, family, base):
    yield "as it is", {}, []
    yield from keys_of(family, base)
    if number < len(FAMILIES):
        if family != "gpt2":
            yield from rotary_of(family)
            yield from windows_of(family)


def make(path, families):
    oracle, numbers = Oracle(), {}
    with open(path, "w") as out:
        def write(value):
            out.write(json.dumps(value) + "\n")
        write({"transformers": transformers.__version__})
        for number, (family, base) in enumerate(bases()):
            if families and family not in families:
                continue
            write({"base": number, "config": base})
            for name, changes, gone in variants(number, family, base):
                entry = {"of": number, "name": name} | ({"set": changes} if changes else {}) | ({"drop": gone} if gone else {})
                outcome = oracle.outcome(applied(base, entry))
                if names := outcome.pop("names", None):
                    key = json.dumps(names)
                    if key not in numbers:
                        numbers[key] = len(numbers)
                        write({"shapes": numbers[key], "names": names})
                    outcome["tensors"] = numbers[key]
                write(entry | outcome)
            out.flush()
            print(family, file=sys.stderr, flush=True)


def read(path):
    return [json.loads(line) for line in open(path)]


def outcome_of(theirs, ours):
    """How a variant ended, in a word."""
    if "score" in theirs and "score" in ours:
        return "same" if abs(theirs["score"] - ours["score"]) < 2e-4 else "DIFFERS"
    if "score" in ours:
        return "accepted"
    tensors = any(word in ours["refused"] for word in ("lacks tensor", "holds \"", "has shape"))
    return ("TENSORS" if tensors else "refused") if "score" in theirs else "both refuse"


def compare(path):
    """Counts by family, and every variant that both don't end alike, with its reason."""
    entries = read(path)
    names = {entry["base"]: entry["config"]["model_type"] for entry in entries if "base" in entry}
    theirs = [entry for entry in entries if "name" in entry]
    counts, lines = collections.Counter(), []
    for one, other in zip(theirs, read(path + ".sherd"), strict=True):
        assert (one["of"], one["name"]) == (other["of"], other["name"])
        outcome = outcome_of(one, other)
        counts[outcome] += 1
        if outcome not in ("same", "both refuse"):
            lines.append((outcome, names[one["of"]], one["of"], one["name"], one.get("score", one.get("refused")),
                          other.get("score", other.get("refused"))))
    for line in sorted(lines, key=str):
        print(*line, sep=" | ")
    print(dict(counts))


def selected(path, chosen, kept_shapes):
    """Of each family one variant for each value and each reason of ours, and the chosen ones.

    New sets of shapes are added to `kept_shapes`."""
    entries = read(path)
    shapes = {entry["shapes"]: entry["names"] for entry in entries if "shapes" in entry}
    ours = iter(read(path + ".sherd"))
    families, seen = [], set()
    for entry in entries:
        if "base" in entry:
            families.append({"base": entry["config"], "variants": []})
            seen = set()
        if "name" not in entry:
            continue
        other = next(ours)
        outcome = outcome_of(entry, other)
        kept = {key: entry[key] for key in ("name", "set", "drop", "score") if key in entry}
        if "refused" in other:
            kept.pop("score", None)
            kept["sherd"] = other["refused"]
        if outcome == "accepted":
            continue
        value = kept.get("sherd") or round(entry["score"], 3)
        if value in seen and (entry["of"], entry["name"]) not in chosen:
            continue
        seen.add(value)
        if "tensors" in entry:
            if shapes[entry["tensors"]] not in kept_shapes:
                kept_shapes.append(shapes[entry["tensors"]])
            kept["tensors"] = kept_shapes.index(shapes[entry["tensors"]])
            families[-1].setdefault("tensors", kept["tensors"])
            if kept["tensors"] == families[-1]["tensors"]:
                del kept["tensors"]
        families[-1]["variants"].append(kept)
    return entries[0]["transformers"], families


def write_selected(to, version, kept_shapes, families):
    with open(to, "w") as out:
        out.write(json.dumps({"transformers": version, "shapes": kept_shapes})[:-1] + ',\n"families": [')
        for number, family in enumerate(families):
            out.write((",\n" if number else "\n") + json.dumps({"base": family["base"], "tensors": family["tensors"]})[:-1])
            out.write(', "variants": [\n' + ",\n".join(json.dumps(kept) for kept in family["variants"]) + "]}")
        out.write("]}\n")


def select(path, chosen, to):
    kept_shapes = []
    version, families = selected(path, {tuple(json.loads(line)) for line in open(chosen)}, kept_shapes)
    write_selected(to, version, kept_shapes, families)


def add(path, to):
    old = json.loads(pathlib.Path(to).read_text())
    version, families = selected(path, set(), old["shapes"])
    known = {family["base"]["model_type"] for family in old["families"]}
    new = {family["base"]["model_type"] for family in families}
    assert version == old["transformers"] and not known & new, (version, known & new)
    write_selected(to, version, old["shapes"], old["families"] + families)


def main():
    transformers.logging.set_verbosity_error()
    logging.disable(logging.WARNING)
    torch.set_num_threads(1)
    path, *more = sys.argv[1:]
    if more[:1] == ["--compare"]:
        compare(path)
    elif more[:1] == ["--select"]:
        select(path, *more[1:])
    elif more[:1] == ["--add"]:
        add(path, *more[1:])
    else:
        make(path, more)


main()
