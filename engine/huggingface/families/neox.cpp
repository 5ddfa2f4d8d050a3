// GPT-NeoX and Pythia: attention and feed-forward side by side; query, key and value by head.
#include <nlohmann/json.hpp>

#include "engine/huggingface/config_reader.h"
#include "engine/huggingface/families/families.h"
#include "engine/huggingface/family_writer.h"

namespace sherd::huggingface {
namespace {

constexpr Module kNames[] = {
    {"embedding.token", "embed_in"},
    {"block.{}.norm1", "layers.{}.input_layernorm"},
    {"block.{}.attention.qkv", "layers.{}.attention.query_key_value", Part::kQkvByHead},
    {"block.{}.attention.output", "layers.{}.attention.dense"},
    {"block.{}.norm2", "layers.{}.post_attention_layernorm"},
    {"block.{}.mlp.up", "layers.{}.mlp.dense_h_to_4h"},
    {"block.{}.mlp.down", "layers.{}.mlp.dense_4h_to_h"},
    {"final_norm", "final_layer_norm"},
    // transformers calls it lm_head from 5.14 on.
    {.ours = "head", .theirs = "embed_out", .outside_prefix = true, .in_memory = "lm_head"},
};
constexpr std::span<const Module> kModules[] = {kNames};
constexpr std::string_view kBuffers[] = {
    "layers.{}.attention.bias", "layers.{}.attention.masked_bias",
    "layers.{}.attention.rotary_emb.inv_freq", "rotary_emb.inv_freq"};
constexpr Fixed kFixed[] = {{"model.norm", "layernorm"}, {"model.bias", "true"}};
constexpr ConfigKey kSizes[] = {
    {"num_hidden_layers", "model.num_layers"},
    {"hidden_size", "model.hidden_size"},
    {"num_attention_heads", "model.num_attention_heads"},
    {"intermediate_size", "model.ffn_hidden_size"},
    {"vocab_size", "model.vocab_size"},
    {"max_position_embeddings", "model.max_seq_length"},
    {"layer_norm_eps", "model.norm_eps", "1e-05"},
    {"tie_word_embeddings", "model.tie_embeddings", "false"},
};
constexpr std::span<const ConfigKey> kKeys[] = {kSizes};
constexpr ConfigWord kWords[] = {
    {"hidden_act", "gelu", "model.activation", "gelu_erf"},
    {"hidden_act", "gelu_fast", "model.activation", "gelu"},
    {"hidden_act", "gelu_new", "model.activation", "gelu"},
    {"hidden_act", "gelu_pytorch_tanh", "model.activation", "gelu"},
};

void neox(ConfigReader& config) {
  config.plain_heads();
  config.rotary({.fraction = 0.25});
  if (!config.truth("attention_bias").value_or(true)) {
    config.set("model.qkv_bias", "false", "attention_bias");
    config.set("model.output_bias", "false", "attention_bias");
  }
  if (config.truth("use_parallel_residual").value_or(true)) {
    config.set("model.block", "parallel", "use_parallel_residual");
  }
}

void write_neox(FamilyWriter& config) {
  config.rotary_of_part();
  config.set("attention_bias", true);
  config.set("use_parallel_residual", config.text("model.block") == "parallel");
}

constexpr Family kFamilies[] = {
    {.model_type = "gpt_neox",
     .architecture = "GPTNeoXForCausalLM",
     .prefix = "gpt_neox.",
     .modules = kModules,
     .buffers = kBuffers,
     .fixed = kFixed,
     .keys = kKeys,
     .words = kWords,
     .more = neox,
     .write = write_neox,
     .old_theta = "rotary_emb_base",
     .old_fraction = "rotary_pct"},
};

}  // namespace

std::span<const Family> neox_families() {
  return kFamilies;
}

}  // namespace sherd::huggingface
