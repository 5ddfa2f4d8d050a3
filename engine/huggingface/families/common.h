/// Table rows that several groups of families share.
#pragma once

#include <array>

#include "engine/huggingface/config_reader.h"
#include "engine/huggingface/family.h"
#include "engine/huggingface/family_writer.h"

namespace sherd::huggingface {

inline constexpr auto kUsualSizes = std::to_array<ConfigKey>({
    {"num_hidden_layers", "model.num_layers"},
    {"hidden_size", "model.hidden_size"},
    {"num_attention_heads", "model.num_attention_heads"},
    {"intermediate_size", "model.ffn_hidden_size"},
    {"vocab_size", "model.vocab_size"},
    {"max_position_embeddings", "model.max_seq_length"},
});

/// For models with blocks named layers.{} and separate query, key, value, gate and up.
inline constexpr auto kUsualModules = std::to_array<Module>({
    {"embedding.token", "embed_tokens"},
    {"block.{}.norm1", "layers.{}.input_layernorm"},
    {"block.{}.attention.qkv", "layers.{}.self_attn.q_proj", Part::kQuery},
    {"block.{}.attention.qkv", "layers.{}.self_attn.k_proj", Part::kKey},
    {"block.{}.attention.qkv", "layers.{}.self_attn.v_proj", Part::kValue},
    {"block.{}.attention.query_norm", "layers.{}.self_attn.q_norm", Part::kHeads},
    {"block.{}.attention.key_norm", "layers.{}.self_attn.k_norm", Part::kHeads},
    {"block.{}.attention.output", "layers.{}.self_attn.o_proj"},
    {"block.{}.mlp.up", "layers.{}.mlp.gate_proj", Part::kGate},
    {"block.{}.mlp.up", "layers.{}.mlp.up_proj", Part::kUp},
    {"block.{}.mlp.down", "layers.{}.mlp.down_proj"},
    {"final_norm", "norm"},
    {"head", "lm_head", Part::kWhole, false, true},
});
/// The second norm of pre-norm blocks.
inline constexpr auto kSecondNorm = std::to_array<Module>({
    {"block.{}.norm2", "layers.{}.post_attention_layernorm"},
});
inline constexpr auto kUsualBuffers = std::to_array<std::string_view>({
    "layers.{}.self_attn.rotary_emb.inv_freq",
    "rotary_emb.inv_freq",
});
inline constexpr auto kGates = std::to_array<ConfigWord>({
    {"hidden_act", "silu", "model.activation", "swiglu"},
    {"hidden_act", "swish", "model.activation", "swiglu"},
    {"hidden_act", "gelu_pytorch_tanh", "model.activation", "geglu"},
    {"hidden_act", "gelu_new", "model.activation", "geglu"},
});
inline constexpr auto kRmsNorm = std::to_array<Fixed>({{"model.norm", "rmsnorm"}});

/// The common form of most families since Llama: modules named model.layers.{}, a gate.
constexpr Family usual_form(std::span<const std::span<const Module>> modules,
                            std::span<const Fixed> fixed,
                            std::span<const std::span<const ConfigKey>> keys,
                            std::span<const Demand> demands = {}) {
  return {.prefix = "model.",
          .modules = modules,
          .buffers = kUsualBuffers,
          .fixed = fixed,
          .keys = keys,
          .words = kGates,
          .demands = demands};
}
/// A family of this form, with its names and its `more` and `write` functions.
constexpr Family family_of_form(Family form, std::string_view model_type,
                                std::string_view architecture, void (*more)(ConfigReader&),
                                void (*write)(FamilyWriter&) = nullptr) {
  form.model_type = model_type;
  form.architecture = architecture;
  form.more = more;
  form.write = write;
  return form;
}

/// num_key_value_heads. null: as many as heads. `missing`: the class's number; 0: as many as heads.
void kv_heads(ConfigReader& config, std::int64_t missing = 0);
/// attention_bias: biases of query, key, value and output.
void attention_biases(ConfigReader& config);
/// The same, and mlp_bias.
void attention_and_mlp_biases(ConfigReader& config);
/// The layers of `mask` rotate queries and keys.
void turned_layers(ConfigReader& config, const std::string& mask, std::string_view from);
/// Windows as Qwen's classes have them: use_sliding_window, sliding_window, max_window_layers,
/// layer_types.
void qwen_windows(ConfigReader& config);
/// Granite's four multipliers, read and written.
void granite_multipliers(ConfigReader& config);
void write_granite_multipliers(FamilyWriter& config);
/// "1110" for 4.
std::string all_but_every(std::int64_t nth);
/// Default sliding_window of classes that have one if config.json lacks the key; null means no
/// window.
inline constexpr const char* kUsualWindow = "4096";

}  // namespace sherd::huggingface
