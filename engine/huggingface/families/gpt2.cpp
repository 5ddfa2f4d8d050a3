// GPT-2: learned positions, layer norms, biases everywhere, and matrices stored the other way
// round.
#include <fmt/format.h>

#include "engine/huggingface/config_reader.h"
#include "engine/huggingface/families/families.h"
#include "engine/huggingface/family_writer.h"

namespace sherd::huggingface {
namespace {

constexpr Module kNames[] = {
    {"embedding.token", "wte"},
    {"embedding.position", "wpe"},
    {"block.{}.norm1", "h.{}.ln_1"},
    {"block.{}.attention.qkv", "h.{}.attn.c_attn", Part::kQkv, true},
    {"block.{}.attention.output", "h.{}.attn.c_proj", Part::kWhole, true},
    {"block.{}.norm2", "h.{}.ln_2"},
    {"block.{}.mlp.up", "h.{}.mlp.c_fc", Part::kWhole, true},
    {"block.{}.mlp.down", "h.{}.mlp.c_proj", Part::kWhole, true},
    {"final_norm", "ln_f"},
    {"head", "lm_head", Part::kWhole, false, true},
};
constexpr std::span<const Module> kModules[] = {kNames};
constexpr std::string_view kBuffers[] = {"h.{}.attn.bias", "h.{}.attn.masked_bias"};
constexpr Fixed kFixed[] = {
    {"model.norm", "layernorm"}, {"model.positions", "learned"}, {"model.bias", "true"}};
constexpr ConfigKey kSizes[] = {
    {"n_layer", "model.num_layers"},
    {"n_embd", "model.hidden_size"},
    {"n_head", "model.num_attention_heads"},
    {"vocab_size", "model.vocab_size"},
    {"n_positions", "model.max_seq_length"},
    {"layer_norm_epsilon", "model.norm_eps", "1e-05"},
    {"tie_word_embeddings", "model.tie_embeddings", "true"},
};
constexpr std::span<const ConfigKey> kKeys[] = {kSizes};
constexpr ConfigWord kWords[] = {
    {"activation_function", "gelu_new", "model.activation", "gelu"},
    {"activation_function", "gelu_pytorch_tanh", "model.activation", "gelu"},
    {"activation_function", "gelu", "model.activation", "gelu_erf"},
};
constexpr Demand kDemands[] = {{"scale_attn_weights", "true"},
                               {"scale_attn_by_inverse_layer_idx", "false"}};
constexpr Alias kAliases[] = {{"hidden_size", "n_embd"},
                              {"max_position_embeddings", "n_positions"},
                              {"num_attention_heads", "n_head"},
                              {"num_hidden_layers", "n_layer"}};
constexpr std::string_view kHarmless[] = {
    "n_ctx",        "reorder_and_upcast_attn", "summary_activation", "summary_proj_to_labels",
    "summary_type", "summary_use_proj"};

void gpt2(ConfigReader& config) {
  if (const auto width = config.text("n_inner")) {
    config.set("model.ffn_hidden_size", *width, "n_inner");
  } else {
    config.set("model.ffn_hidden_size", 4.0 * config.number("n_embd").value_or(0), "n_embd");
  }
}

void write_gpt2(FamilyWriter& config) {
  config.set("n_inner", config.whole("model.ffn_hidden_size"));
  config.set("n_ctx", config.whole("model.max_seq_length"));  // llama.cpp's converter asks for it
}

constexpr Family kFamilies[] = {
    {.model_type = "gpt2",
     .architecture = "GPT2LMHeadModel",
     .prefix = "transformer.",
     .modules = kModules,
     .buffers = kBuffers,
     .fixed = kFixed,
     .keys = kKeys,
     .words = kWords,
     .demands = kDemands,
     .aliases = kAliases,
     .harmless = kHarmless,
     .more = gpt2,
     .write = write_gpt2},
};

}  // namespace

std::span<const Family> gpt2_families() {
  return kFamilies;
}

}  // namespace sherd::huggingface
