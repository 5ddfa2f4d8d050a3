// StableLM: Llama's form with layer norms and a quarter of each head rotated. The 12B has parallel
// attention and feed-forward, and norms of queries and keys with weights for each head.
#include <nlohmann/json.hpp>

#include "engine/huggingface/families/common.h"
#include "engine/huggingface/families/families.h"

namespace sherd::huggingface {
namespace {

constexpr Module kHeadNorms[] = {
    {.ours = "block.{}.attention.query_norm",
     .theirs = "layers.{}.self_attn.q_layernorm",
     .part = Part::kEachHead,
     .each_head = "norms.{}"},
    {.ours = "block.{}.attention.key_norm",
     .theirs = "layers.{}.self_attn.k_layernorm",
     .part = Part::kEachHead,
     .each_head = "norms.{}"},
};
constexpr std::span<const Module> kModules[] = {kHeadNorms, kUsualModules, kSecondNorm};
constexpr Fixed kFixed[] = {{"model.norm", "layernorm"}, {"model.norm_bias", "true"}};
constexpr ConfigKey kNormAndHead[] = {
    {"layer_norm_eps", "model.norm_eps", "1e-05"},
    {"tie_word_embeddings", "model.tie_embeddings", "false"},
};
constexpr std::span<const ConfigKey> kKeys[] = {kUsualSizes, kNormAndHead};
constexpr ConfigWord kWords[] = {
    {"hidden_act", "silu", "model.activation", "swiglu"},
    {"hidden_act", "swish", "model.activation", "swiglu"},
    {"hidden_act", "gelu_pytorch_tanh", "model.activation", "geglu"},
    {"hidden_act", "gelu_new", "model.activation", "geglu"},
    {"qk_layernorm", "false", "model.qk_norm", "none"},
    {"qk_layernorm", "true", "model.qk_norm", "per_head"},
};

void stablelm(ConfigReader& config) {
  kv_heads(config, 32);
  config.plain_heads();
  config.rotary({.fraction = 0.25});
  if (config.truth("use_qkv_bias").value_or(false)) {
    config.set("model.qkv_bias", "true", "use_qkv_bias");
  }
  if (config.truth("use_parallel_residual").value_or(false)) {
    config.set("model.block", "parallel_one_norm", "use_parallel_residual");
  }
}

void write_stablelm(FamilyWriter& config) {
  config.kv_heads();
  config.rotary_of_part();
  config.set("use_qkv_bias", config.truth("model.qkv_bias"));
  config.set("use_parallel_residual", config.text("model.block") == "parallel_one_norm");
}

constexpr Family kForm = [] {
  Family form = usual_form(kModules, kFixed, kKeys);
  form.words = kWords;
  return form;
}();
constexpr Family kFamilies[] = {
    family_of_form(kForm, "stablelm", "StableLmForCausalLM", stablelm, write_stablelm),
};

}  // namespace

std::span<const Family> stablelm_families() {
  return kFamilies;
}

}  // namespace sherd::huggingface
