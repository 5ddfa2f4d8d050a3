// Command R and Command R7B: parallel attention and feed-forward after one layer norm, interleaved
// rotary pairs, and in the second only in windowed layers. Command R+ has norms of queries and keys
// with weights for each head.
#include <nlohmann/json.hpp>

#include "engine/huggingface/families/common.h"
#include "engine/huggingface/families/families.h"

namespace sherd::huggingface {
namespace {

constexpr Module kHeadNorms[] = {
    {"block.{}.attention.query_norm", "layers.{}.self_attn.q_norm", Part::kHeadMatrix},
    {"block.{}.attention.key_norm", "layers.{}.self_attn.k_norm", Part::kHeadMatrix},
};
constexpr std::span<const Module> kModules[] = {kHeadNorms, kUsualModules};
constexpr Fixed kFixed[] = {{"model.norm", "layernorm"}, {"model.block", "parallel_one_norm"}};
constexpr ConfigKey kNormAndHead[] = {
    {"layer_norm_eps", "model.norm_eps", "1e-05"},
    {"tie_word_embeddings", "model.tie_embeddings", "true"},
    {"logit_scale", "model.logits_scale", "0.0625"},
};
constexpr std::span<const ConfigKey> kKeys[] = {kUsualSizes, kNormAndHead};
constexpr ConfigWord kWords[] = {
    {"hidden_act", "silu", "model.activation", "swiglu"},
    {"hidden_act", "swish", "model.activation", "swiglu"},
    {"hidden_act", "gelu_pytorch_tanh", "model.activation", "geglu"},
    {"hidden_act", "gelu_new", "model.activation", "geglu"},
    {"use_qk_norm", "false", "model.qk_norm", "none"},
    {"use_qk_norm", "true", "model.qk_norm", "per_head"},
};
constexpr std::string_view kHarmless[] = {"cache_implementation"};

void attention(ConfigReader& config, double theta) {
  kv_heads(config);
  config.head_width();
  config.rotary({.theta = theta});
  attention_biases(config);
}

// Versions of the class differ in theta.
void cohere(ConfigReader& config) {
  attention(config, 0.0);
}

// Layers without a window have no positions.
void cohere2(ConfigReader& config) {
  attention(config, 10000.0);
  std::optional<std::string> mask = config.layer_types();
  if (!mask) mask = all_but_every(config.layers("sliding_window_pattern", 4, 1));
  config.windows(*mask, kUsualWindow);
  turned_layers(config, *mask, "layer_types");
}

void write_cohere(FamilyWriter& config) {
  config.kv_heads();
  config.rotary();
  config.attention_bias();
}

void write_cohere2(FamilyWriter& config) {
  write_cohere(config);
  config.window_layers();
}

constexpr Family kForm = [] {
  Family form = usual_form(kModules, kFixed, kKeys);
  form.harmless = kHarmless;
  form.interleaved_rotary = true;
  form.words = kWords;
  return form;
}();
constexpr Family kForm2 = [] {
  Family form = kForm;
  form.words = kGates;
  return form;
}();
constexpr Family kFamilies[] = {
    family_of_form(kForm, "cohere", "CohereForCausalLM", cohere, write_cohere),
    family_of_form(kForm2, "cohere2", "Cohere2ForCausalLM", cohere2, write_cohere2),
};

}  // namespace

std::span<const Family> cohere_families() {
  return kFamilies;
}

}  // namespace sherd::huggingface
