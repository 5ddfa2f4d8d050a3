// GLM 4 (of April 2025): four norms in a block, half of each head turned, in interleaved pairs.
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
// The first row for a module is the one that is taken.
constexpr std::span<const Module> kModules[] = {kNormsAndFeedForward, kSecondNorm, kUsualModules};
constexpr Fixed kFixed[] = {{"model.norm", "rmsnorm"}, {"model.norm_placement", "sandwich"}};
constexpr ConfigKey kNormAndHead[] = {
    {"rms_norm_eps", "model.norm_eps", "1.5625e-07"},
    {"tie_word_embeddings", "model.tie_embeddings", "false"},
    {"attention_bias", "model.qkv_bias", "true"},
};
constexpr std::span<const ConfigKey> kKeys[] = {kUsualSizes, kNormAndHead};

void glm4(ConfigReader& config) {
  kv_heads(config);
  config.head_width(128);
  config.rotary(10000.0, 0.5);
}

void write_glm4(FamilyWriter& config) {
  config.kv_heads();
  config.head_width();
  config.rotary_of_part();
}

constexpr Family kFamilies[] = {
    {.model_type = "glm4",
     .architecture = "Glm4ForCausalLM",
     .prefix = "model.",
     .modules = kModules,
     .buffers = kUsualBuffers,
     .fixed = kFixed,
     .keys = kKeys,
     .words = kSilu,
     .more = glm4,
     .write = write_glm4,
     .interleaved_rotary = true},
};

}  // namespace

std::span<const Family> glm_families() {
  return kFamilies;
}

}  // namespace sherd::huggingface
