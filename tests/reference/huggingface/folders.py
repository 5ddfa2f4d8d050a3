"""folders.py [--check]: tiny models of `transformers`, saved by it, and what it makes of them.

Writes tests/engine/huggingface/folders.json: for each model the text of config.json, the exact header of
model.safetensors (as the safetensors library writes it), and the loss of a fixed row of tokens. No
weights are stored: they are a formula, whose values f32, bf16 and f16 all hold exactly.

    n  = sum over characters c of the tensor's name, at position p from 1, of ord(c) * p
    k  = ((i * 7919 + n * 104729) mod 2^32 >> 7) mod 255 - 127      i: row-major element
    weight = k / 512; of vectors whose name ends in ".weight" (norms): 1 + (k mod 17 - 8) / 64
    token t = (3 t^2 + 7 t) mod V,   t in [0, 33)

Needs `./dev deps oracle`.
"""
import json
import pathlib
import sys
import tempfile

import safetensors.torch
import torch
import transformers

HERE = pathlib.Path(__file__).resolve().parent
VALUES = HERE.parents[1] / "engine" / "huggingface" / "folders.json"
TOKENS = 33

LLAMA = dict(vocab_size=56, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4,
             num_key_value_heads=2, max_position_embeddings=64, pad_token_id=None, bos_token_id=1, eos_token_id=2)
LLAMA3 = dict(rope_type="llama3", rope_theta=500000.0, factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0,
              original_max_position_embeddings=16)
YARN = dict(rope_type="yarn", rope_theta=10000.0, factor=4.0, original_max_position_embeddings=16)
LONGROPE = dict(rope_type="longrope", rope_theta=10000.0, short_factor=[1.0, 1.25, 1.5, 2.0],
                long_factor=[1.0, 2.0, 4.0, 8.0])
HALF = dict(rope_type="default", rope_theta=20000.0, partial_rotary_factor=0.5)
TWO_TABLES = {"full_attention": dict(rope_type="linear", rope_theta=1000000.0, factor=8.0),
              "sliding_attention": dict(rope_type="default", rope_theta=20000.0)}
FULL_AND_WINDOWED = ["sliding_attention", "full_attention"]
MODELS = {
    "llama": transformers.LlamaConfig(**LLAMA, rope_theta=10000.0),
    "llama_tied": transformers.LlamaConfig(**LLAMA, rope_theta=100000.0, tie_word_embeddings=True),
    "llama3": transformers.LlamaConfig(**LLAMA, rope_parameters=LLAMA3, attention_bias=True, mlp_bias=True),
    "llama_yarn": transformers.LlamaConfig(**LLAMA, rope_parameters=YARN, rms_norm_eps=1e-5),
    "mistral": transformers.MistralConfig(**LLAMA, sliding_window=None),
    "mistral_nemo": transformers.MistralConfig(**LLAMA, head_dim=16, sliding_window=7),
    "ministral3": transformers.Ministral3Config(**(LLAMA | dict(max_position_embeddings=128)), head_dim=16,
                                                rope_parameters=YARN | dict(
                                                    original_max_position_embeddings=64, mscale=1.0, mscale_all_dim=1.0,
                                                    llama_4_scaling_beta=0.1)),
    "qwen2": transformers.Qwen2Config(**LLAMA, rope_theta=1000000.0),
    "qwen3": transformers.Qwen3Config(**LLAMA, head_dim=16, tie_word_embeddings=True),
    "smollm3": transformers.SmolLM3Config(**(LLAMA | dict(num_hidden_layers=4))),
    "granite": transformers.GraniteConfig(**LLAMA, attention_multiplier=0.25, embedding_multiplier=3.0,
                                          residual_multiplier=0.5, logits_scaling=2.0),
    "phi3": transformers.Phi3Config(**LLAMA, sliding_window=9),
    "phi3_long": transformers.Phi3Config(**LLAMA, rope_parameters=LONGROPE, original_max_position_embeddings=48),
    "gemma": transformers.GemmaConfig(**LLAMA, head_dim=16),
    "gemma2": transformers.Gemma2Config(**LLAMA, head_dim=16, sliding_window=5, query_pre_attn_scalar=24,
                                        layer_types=FULL_AND_WINDOWED),
    "gemma3": transformers.Gemma3TextConfig(**LLAMA, head_dim=16, sliding_window=5, query_pre_attn_scalar=24,
                                            layer_types=FULL_AND_WINDOWED),
    "gemma3_scaled": transformers.Gemma3TextConfig(**LLAMA, head_dim=16, sliding_window=5, query_pre_attn_scalar=24,
                                                   layer_types=FULL_AND_WINDOWED, rope_parameters=TWO_TABLES),
    "olmo3": transformers.Olmo3Config(**LLAMA, sliding_window=5, layer_types=FULL_AND_WINDOWED, rope_parameters={
        "full_attention": YARN, "sliding_attention": dict(rope_type="default", rope_theta=10000.0)}),
    "olmo2": transformers.Olmo2Config(**LLAMA),
    "gpt_neox": transformers.GPTNeoXConfig(vocab_size=56, hidden_size=32, intermediate_size=48, num_hidden_layers=2,
                                           num_attention_heads=4, max_position_embeddings=64, bos_token_id=1,
                                           eos_token_id=2),
    "gpt_neox_half": transformers.GPTNeoXConfig(vocab_size=56, hidden_size=32, intermediate_size=48,
                                                num_hidden_layers=2, num_attention_heads=4, bos_token_id=1,
                                                eos_token_id=2, max_position_embeddings=64, rope_parameters=HALF),
    "stablelm": transformers.StableLmConfig(**LLAMA, use_qkv_bias=True),
    "stablelm_half": transformers.StableLmConfig(**LLAMA, rope_parameters=HALF),
    "stablelm_12b": transformers.StableLmConfig(**LLAMA, rope_parameters=HALF, qk_layernorm=True,
                                                use_parallel_residual=True),
    "starcoder2": transformers.Starcoder2Config(**LLAMA, sliding_window=11),
    "cohere": transformers.CohereConfig(**(LLAMA | dict(eos_token_id=3)), logit_scale=0.5),
    "command_r_plus": transformers.CohereConfig(**(LLAMA | dict(eos_token_id=3)), logit_scale=0.5, use_qk_norm=True),
    "cohere2": transformers.Cohere2Config(**(LLAMA | dict(num_hidden_layers=4)), logit_scale=0.25, sliding_window=5),
    "cohere2_heads": transformers.Cohere2Config(**LLAMA, head_dim=16, logit_scale=0.25, sliding_window=5,
                                                layer_types=FULL_AND_WINDOWED),
    "glm": transformers.GlmConfig(**LLAMA, head_dim=16),
    "glm4": transformers.Glm4Config(**LLAMA, head_dim=16, attention_bias=True),
    "ministral": transformers.MinistralConfig(**LLAMA, head_dim=16, sliding_window=5, layer_types=FULL_AND_WINDOWED),
    "seed_oss": transformers.SeedOssConfig(**LLAMA, head_dim=16),
    "internlm3": transformers.InternLM3Config(**LLAMA, head_dim=16),
    "ernie4_5": transformers.Ernie4_5Config(**LLAMA, head_dim=16, use_bias=True),
    "helium": transformers.HeliumConfig(**LLAMA, head_dim=8),
    "arcee": transformers.ArceeConfig(**LLAMA),
    "nemotron": transformers.NemotronConfig(**LLAMA),
    "exaone4": transformers.Exaone4Config(**(LLAMA | dict(num_hidden_layers=4)), sliding_window=5),
    "granite4": transformers.GraniteMoeHybridConfig(
        **LLAMA, num_local_experts=0, shared_intermediate_size=40, position_embedding_type="rope", mamba_n_heads=4,
        layer_types=["attention"] * 2, attention_multiplier=0.25, embedding_multiplier=3.0, residual_multiplier=0.5,
        logits_scaling=2.0),
    "gpt2": transformers.GPT2Config(vocab_size=56, n_embd=32, n_layer=2, n_head=4, n_positions=64),
}

SMALL_EYES = dict(hidden_size=16, intermediate_size=24, num_hidden_layers=1, num_attention_heads=2, image_size=28,
                  patch_size=14)
# Models of several parts; their text parts are two of those above.
WHOLES = {
    "gemma3_whole": transformers.Gemma3Config(text_config=MODELS["gemma3"].to_dict(), vision_config=SMALL_EYES,
                                              mm_tokens_per_image=4, image_token_index=58, boi_token_index=56,
                                              eoi_token_index=57),
    "mistral3_whole": transformers.Mistral3Config(text_config=MODELS["ministral3"].to_dict(),
                                                  vision_config=SMALL_EYES | dict(model_type="pixtral", head_dim=8),
                                                  tie_word_embeddings=False, image_token_index=58),
    "llama4_whole": transformers.Llama4Config(
        text_config=transformers.Llama4TextConfig(
            **(LLAMA | dict(intermediate_size=20)), intermediate_size_mlp=48, num_local_experts=6, head_dim=16,
            moe_layers=[1], no_rope_layers=[1, 0], floor_scale=4, attn_scale=0.3, attention_chunk_size=48).to_dict(),
        vision_config=dict(SMALL_EYES, intermediate_size=64, vision_output_dim=16, projector_input_dim=16,
                           projector_output_dim=16, pixel_shuffle_ratio=0.5), image_token_index=58),
}


def values_of(name, shape):
    """The formula's values of a tensor."""
    tensor = torch.empty(shape)
    fill(name, tensor)
    return tensor


def fill(name, parameter):
    i = torch.arange(parameter.numel(), dtype=torch.int64)
    n = sum(ord(c) * p for p, c in enumerate(name, 1))
    k = ((i * 7919 + n * 104729) % 2**32 >> 7) % 255 - 127
    is_norm = parameter.dim() == 1 and name.endswith(".weight")
    values = 1 + (k % 17 - 8) / 64 if is_norm else k / 512
    with torch.no_grad():
        parameter.copy_(values.reshape(parameter.shape))


def case_of(config):
    model = transformers.AutoModelForCausalLM.from_config(config).to(torch.float32).eval()
    for name, parameter in model.named_parameters():
        # GPT-NeoX's head has another name in files than in memory.
        fill("embed_out.weight" if config.model_type == "gpt_neox" and name == "lm_head.weight" else name, parameter)
    tokens = torch.tensor([[(3 * t * t + 7 * t) % config.vocab_size for t in range(TOKENS)]])
    with torch.no_grad():
        logits = model.double()(tokens).logits
    loss = torch.nn.functional.cross_entropy(logits[0, :-1], tokens[0, 1:])
    model.float()
    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(folder)
        data = pathlib.Path(folder, "model.safetensors").read_bytes()
        header = data[8:8 + int.from_bytes(data[:8], "little")].decode()
        return {"config": pathlib.Path(folder, "config.json").read_text(), "header": header, "loss": loss.item()}


def whole_case_of(config):
    """A model of several parts as it is saved; its weights are the formula's by the names in the file."""
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder, "model.safetensors")
        transformers.AutoModelForImageTextToText.from_config(config).to(torch.float32).save_pretrained(folder)
        data = path.read_bytes()
        header = data[8:8 + int.from_bytes(data[:8], "little")].decode()
        tensors = {name: values_of(name, entry["shape"]) for name, entry in json.loads(header).items()
                   if name != "__metadata__"}
        safetensors.torch.save_file(tensors, path, metadata={"format": "pt"})
        text = pathlib.Path(folder, "config.json").read_text()
        model = transformers.AutoModelForImageTextToText.from_pretrained(folder, dtype=torch.float32).eval()
        tokens = torch.tensor([[(3 * t * t + 7 * t) % 56 for t in range(TOKENS)]])
        with torch.no_grad():
            logits = model.double()(input_ids=tokens).logits
        loss = torch.nn.functional.cross_entropy(logits[0, :-1], tokens[0, 1:])
        return {"config": text, "header": header, "loss": loss.item()}


def main():
    cases = {name: case_of(config) for name, config in MODELS.items()}
    cases |= {name: whole_case_of(config) for name, config in WHOLES.items()}
    if sys.argv[1:] != ["--check"]:
        VALUES.write_text(json.dumps(cases, indent=1) + "\n")
        return
    committed = json.loads(VALUES.read_text())
    for name, case in cases.items():
        assert committed[name]["header"] == case["header"], name
        assert abs(committed[name]["loss"] - case["loss"]) < 1e-9, name


if __name__ == "__main__":
    main()
