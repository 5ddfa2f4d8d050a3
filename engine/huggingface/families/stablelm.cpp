// StableLM: Llama's form with layer norms and a quarter of each head turned.
#include <nlohmann/json.hpp>

#include "engine/huggingface/families/common.h"
#include "engine/huggingface/families/families.h"

namespace sherd::huggingface {
namespace {

constexpr std::span<const Module> kModules[] = {kUsualModules, kSecondNorm};
constexpr Fixed kFixed[] = {{"model.norm", "layernorm"}, {"model.norm_bias", "true"}};
constexpr ConfigKey kNormAndHead[] = {
    {"layer_norm_eps", "model.norm_eps", "1e-05"},
    {"tie_word_embeddings", "model.tie_embeddings", "false"},
};
constexpr std::span<const ConfigKey> kKeys[] = {kUsualSizes, kNormAndHead};
// The 12B's layer norms per head have biases and weights of their own for each head.
constexpr Demand kDemands[] = {{"qk_layernorm", "false"}};

void stablelm(ConfigReader& config) {
  kv_heads(config);
  config.rotary(10000.0, 0.25);
  if (config.truth("use_qkv_bias").value_or(false)) {
    config.set("model.qkv_bias", "true", "use_qkv_bias");
  }
  if (config.truth("use_parallel_residual").value_or(false)) {
    config.set("model.block", "parallel_one_norm", "use_parallel_residual");
  }
}

constexpr Family kFamilies[] = {family_of_form(usual_form(kModules, kFixed, kKeys, kDemands),
                                               "stablelm", "StableLmForCausalLM", stablelm)};

}  // namespace

std::span<const Family> stablelm_families() {
  return kFamilies;
}

}  // namespace sherd::huggingface
