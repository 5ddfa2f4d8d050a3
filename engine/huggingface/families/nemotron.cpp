// Nemotron 3 and 4, Minitron: layer norms that multiply by 1 + weight, the square of ReLU without a gate, half of
// each head turned.
#include <nlohmann/json.hpp>

#include "engine/huggingface/families/common.h"
#include "engine/huggingface/families/families.h"

namespace sherd::huggingface {
namespace {

constexpr Module kFeedForward[] = {
    {"block.{}.mlp.up", "layers.{}.mlp.up_proj"},
};
// The first row for a module is the one that is taken.
constexpr std::span<const Module> kModules[] = {kFeedForward, kSecondNorm, kUsualModules};
constexpr Fixed kFixed[] = {
    {"model.norm", "layernorm"}, {"model.norm_bias", "true"}, {"model.norm_offset", "1"}};
constexpr ConfigKey kNormAndHead[] = {
    {"norm_eps", "model.norm_eps", "1e-05"},
    {"tie_word_embeddings", "model.tie_embeddings", "false"},
};
constexpr std::span<const ConfigKey> kKeys[] = {kUsualSizes, kNormAndHead};
constexpr ConfigWord kWords[] = {{"hidden_act", "relu2", "model.activation", "relu2"}};

void nemotron(ConfigReader& config) {
  kv_heads(config);
  config.head_width();
  config.rotary(10000.0, 0.5);
  attention_and_mlp_biases(config);
}

void write_nemotron(FamilyWriter& config) {
  config.kv_heads();
  config.head_width();
  config.rotary_of_part();
  config.biases();
}

constexpr Family kForm = [] {
  Family form = usual_form(kModules, kFixed, kKeys);
  form.words = kWords;
  return form;
}();
constexpr Family kFamilies[] = {
    family_of_form(kForm, "nemotron", "NemotronForCausalLM", nemotron, write_nemotron),
};

}  // namespace

std::span<const Family> nemotron_families() {
  return kFamilies;
}

}  // namespace sherd::huggingface
