// Nemotron and Arcee: a feed-forward without a gate whose activation is the square of ReLU.
#include <nlohmann/json.hpp>

#include "engine/huggingface/families/common.h"
#include "engine/huggingface/families/families.h"

namespace sherd::huggingface {
namespace {

constexpr Module kFeedForward[] = {{"block.{}.mlp.up", "layers.{}.mlp.up_proj"}};
// The first row for a module is the one that is taken.
constexpr std::span<const Module> kModules[] = {kFeedForward, kSecondNorm, kUsualModules};
constexpr Fixed kNemotronFixed[] = {
    {"model.norm", "layernorm"}, {"model.norm_bias", "true"}, {"model.norm_offset", "1"}};
constexpr ConfigKey kArceeNormAndHead[] = {
    {"rms_norm_eps", "model.norm_eps", "1e-05"},
    {"tie_word_embeddings", "model.tie_embeddings", "false"},
};
constexpr ConfigKey kNemotronNormAndHead[] = {
    {"norm_eps", "model.norm_eps", "1e-05"},
    {"tie_word_embeddings", "model.tie_embeddings", "false"},
};
constexpr std::span<const ConfigKey> kArceeKeys[] = {kUsualSizes, kArceeNormAndHead};
constexpr std::span<const ConfigKey> kNemotronKeys[] = {kUsualSizes, kNemotronNormAndHead};
constexpr ConfigWord kWords[] = {
    {"hidden_act", "relu2", "model.activation", "relu2"},
    {"hidden_act", "gelu", "model.activation", "gelu_erf"},
    {"hidden_act", "gelu_new", "model.activation", "gelu"},
    {"hidden_act", "gelu_pytorch_tanh", "model.activation", "gelu"},
};

void arcee(ConfigReader& config) {
  kv_heads(config);
  config.head_width();
  config.rotary();
  attention_and_mlp_biases(config);
}

void nemotron(ConfigReader& config) {
  kv_heads(config);
  config.head_width();
  config.rotary({.fraction = 0.5});
  attention_and_mlp_biases(config);
}

void write_arcee(FamilyWriter& config) {
  config.kv_heads();
  config.head_width();
  config.rotary();
  config.biases();
}

void write_nemotron(FamilyWriter& config) {
  config.kv_heads();
  config.head_width();
  config.rotary_of_part();
  config.biases();
}

constexpr Family form_of(std::span<const Fixed> fixed,
                         std::span<const std::span<const ConfigKey>> keys) {
  Family form = usual_form(kModules, fixed, keys);
  form.words = kWords;
  return form;
}
constexpr Family kFamilies[] = {
    family_of_form(form_of(kRmsNorm, kArceeKeys), "arcee", "ArceeForCausalLM", arcee, write_arcee),
    family_of_form(form_of(kNemotronFixed, kNemotronKeys), "nemotron", "NemotronForCausalLM",
                   nemotron, write_nemotron),
};

}  // namespace

std::span<const Family> relu_families() {
  return kFamilies;
}

}  // namespace sherd::huggingface
