// OLMo 2 and 3: norms of the branches' outputs only, and of whole query and key projections.
#include <nlohmann/json.hpp>

#include "engine/huggingface/families/common.h"
#include "engine/huggingface/families/families.h"

namespace sherd::huggingface {
namespace {

constexpr Module kNorms[] = {
    {"block.{}.attention.norm", "layers.{}.post_attention_layernorm"},
    {"block.{}.mlp.norm", "layers.{}.post_feedforward_layernorm"},
};
constexpr std::span<const Module> kModules[] = {kUsualModules, kNorms};
constexpr Fixed kFixed[] = {
    {"model.norm", "rmsnorm"}, {"model.norm_placement", "post"}, {"model.qk_norm", "projection"}};
constexpr ConfigKey kNormAndHead[] = {
    {"rms_norm_eps", "model.norm_eps", "1e-05"},
    {"tie_word_embeddings", "model.tie_embeddings", "false"},
};
constexpr std::span<const ConfigKey> kKeys[] = {kUsualSizes, kNormAndHead};

void olmo2(ConfigReader& config) {
  kv_heads(config);
  config.head_width();
  config.rotary();
  attention_biases(config);
}

void olmo3(ConfigReader& config) {
  kv_heads(config);
  config.head_width();
  config.rotary_by_layer({.theta = 0.0}, 500000.0, true);
  attention_biases(config);
  config.windows(config.layer_types().value_or(all_but_every(4)), kUsualWindow);
}

void write_olmo2(FamilyWriter& config) {
  config.kv_heads();
  config.head_width();
  config.rotary();
  config.attention_bias();
}

// transformers 4 has one theta for both kinds of layers.
void write_olmo3(FamilyWriter& config) {
  const double windowed = config.number("model.window_rope_theta");
  if (windowed != 0.0 && windowed != config.number("model.rope_theta")) return;
  config.kv_heads();
  config.head_width();
  config.rotary_by_layer();
  config.attention_bias();
  config.window_layers();
}

constexpr Family kForm = usual_form(kModules, kFixed, kKeys);
constexpr Family kFormOfTwoTables = [] {
  Family form = kForm;
  form.two_rotary_tables = true;
  return form;
}();
constexpr Family kFamilies[] = {
    family_of_form(kForm, "olmo2", "Olmo2ForCausalLM", olmo2, write_olmo2),
    family_of_form(kFormOfTwoTables, "olmo3", "Olmo3ForCausalLM", olmo3, write_olmo3),
};

}  // namespace

std::span<const Family> olmo_families() {
  return kFamilies;
}

}  // namespace sherd::huggingface
