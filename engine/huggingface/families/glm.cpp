// GLM 4: half of each head rotated, in interleaved pairs; gate and up in one matrix. The second
// version (of April 2025) has four norms in a block.
#include <nlohmann/json.hpp>

#include "engine/huggingface/families/common.h"
#include "engine/huggingface/families/families.h"

namespace sherd::huggingface {
namespace {

constexpr Module kNormsAndFeedForward[] = {
    {"block.{}.attention.norm", "layers.{}.post_self_attn_layernorm"},
    {"block.{}.mlp.norm", "layers.{}.post_mlp_layernorm"},
    {"block.{}.mlp.up", "layers.{}.mlp.gate_up_proj"},
};
constexpr Module kFeedForward[] = {{"block.{}.mlp.up", "layers.{}.mlp.gate_up_proj"}};
// The first row for a module is the one that is taken.
constexpr std::span<const Module> kModules[] = {kFeedForward, kSecondNorm, kUsualModules};
constexpr std::span<const Module> kModules4[] = {kNormsAndFeedForward, kSecondNorm, kUsualModules};
constexpr Fixed kSandwich[] = {{"model.norm", "rmsnorm"}, {"model.norm_placement", "sandwich"}};
constexpr ConfigKey kNormAndHead[] = {
    {"rms_norm_eps", "model.norm_eps", "1.5625e-07"},
    {"tie_word_embeddings", "model.tie_embeddings", "false"},
    {"attention_bias", "model.qkv_bias", "true"},
};
constexpr std::span<const ConfigKey> kKeys[] = {kUsualSizes, kNormAndHead};

void glm(ConfigReader& config) {
  kv_heads(config, 2);
  config.head_width(128);
  config.rotary({.fraction = 0.5});
}

void write_glm(FamilyWriter& config) {
  config.kv_heads();
  config.head_width();
  config.rotary_of_part();
}

constexpr Family form_of(std::span<const std::span<const Module>> modules,
                         std::span<const Fixed> fixed) {
  Family form = usual_form(modules, fixed, kKeys);
  form.interleaved_rotary = true;
  return form;
}
constexpr Family kFamilies[] = {
    family_of_form(form_of(kModules, kRmsNorm), "glm", "GlmForCausalLM", glm, write_glm),
    family_of_form(form_of(kModules4, kSandwich), "glm4", "Glm4ForCausalLM", glm, write_glm),
};

}  // namespace

std::span<const Family> glm_families() {
  return kFamilies;
}

}  // namespace sherd::huggingface
