// StarCoder 2: layer norms and biases as in GPT-2, rotary positions, fewer key than query heads.
#include <nlohmann/json.hpp>

#include "engine/huggingface/families/common.h"
#include "engine/huggingface/families/families.h"

namespace sherd::huggingface {
namespace {

constexpr Module kFeedForward[] = {
    {"block.{}.mlp.up", "layers.{}.mlp.c_fc"},
    {"block.{}.mlp.down", "layers.{}.mlp.c_proj"},
};
// The first row for a module is the one that is taken.
constexpr std::span<const Module> kModules[] = {kFeedForward, kSecondNorm, kUsualModules};
constexpr Fixed kFixed[] = {{"model.norm", "layernorm"}};
constexpr ConfigKey kNormAndHead[] = {
    {"norm_epsilon", "model.norm_eps", "1e-05"},
    {"use_bias", "model.bias", "true"},
    {"tie_word_embeddings", "model.tie_embeddings", "true"},
};
constexpr std::span<const ConfigKey> kKeys[] = {kUsualSizes, kNormAndHead};
constexpr ConfigWord kWords[] = {
    {"hidden_act", "gelu_pytorch_tanh", "model.activation", "gelu"},
    {"hidden_act", "gelu_new", "model.activation", "gelu"},
    {"hidden_act", "gelu", "model.activation", "gelu_erf"},
};
constexpr std::string_view kHarmless[] = {"mlp_type", "norm_type", "layer_norm_eps"};

void starcoder2(ConfigReader& config) {
  kv_heads(config, 2);
  config.head_width();
  config.rotary();
  config.set("model.norm_bias", "true");
  config.window();
}

void write_starcoder2(FamilyWriter& config) {
  config.kv_heads();
  config.rotary();
  config.window();
}

constexpr Family kFamilies[] = {
    {.model_type = "starcoder2",
     .architecture = "Starcoder2ForCausalLM",
     .prefix = "model.",
     .modules = kModules,
     .buffers = kUsualBuffers,
     .fixed = kFixed,
     .keys = kKeys,
     .words = kWords,
     .harmless = kHarmless,
     .more = starcoder2,
     .write = write_starcoder2},
};

}  // namespace

std::span<const Family> starcoder_families() {
  return kFamilies;
}

}  // namespace sherd::huggingface
