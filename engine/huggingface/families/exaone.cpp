// EXAONE 4: norms of the branches' outputs only and of each head's queries and keys; where some
// layers have windows, those alone turn queries and keys.
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
    {"model.norm", "rmsnorm"}, {"model.norm_placement", "post"}, {"model.qk_norm", "head"}};
constexpr ConfigKey kNormAndHead[] = {
    {"rms_norm_eps", "model.norm_eps", "1e-05"},
    {"tie_word_embeddings", "model.tie_embeddings", "false"},
};
constexpr std::span<const ConfigKey> kKeys[] = {kUsualSizes, kNormAndHead};

void exaone4(ConfigReader& config) {
  kv_heads(config, 32);
  config.head_width();
  config.rotary();
  std::optional<std::string> mask = config.layer_types();
  config.use("sliding_window_pattern");
  const bool has_window = !config.is_null("sliding_window");
  if (!mask && !has_window) config.refuse("layer_types", "is missing, and sliding_window is null");
  if (!mask) {
    mask = all_but_every(config.layers("sliding_window_pattern", 4, 1));
  }
  config.windows(*mask, kUsualWindow);
  if (has_window) turned_layers(config, *mask, "layer_types");
}

void write_exaone4(FamilyWriter& config) {
  config.kv_heads();
  config.head_width();
  config.rotary();
  config.window_layers();
  // Where the class has no window all layers turn, else those that are windowed.
  if (!config.has_windows() && config.is_turned(0)) config.set_null("sliding_window");
}

constexpr Family kFamilies[] = {
    family_of_form(usual_form(kModules, kFixed, kKeys), "exaone4", "Exaone4ForCausalLM", exaone4,
                   write_exaone4),
};

}  // namespace

std::span<const Family> exaone_families() {
  return kFamilies;
}

}  // namespace sherd::huggingface
