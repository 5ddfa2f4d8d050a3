// Command R and Command R7B: attention and feed-forward side by side behind one layer norm, interleaved
// rotary pairs, and in the second only in windowed layers. Command R+ has norms of queries and keys with
// weights for each head.
#include <fmt/format.h>

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
    {"use_qk_norm", "false", "model.qk_norm", "none"},
    {"use_qk_norm", "true", "model.qk_norm", "per_head"},
};
constexpr Demand kDemands[] = {{"attention_bias", "false"}};
// Command R7B's class has no such norms.
constexpr Demand kDemands2[] = {{"attention_bias", "false"}, {"use_qk_norm", "false"}};
constexpr std::string_view kHarmless[] = {"head_dim", "cache_implementation",
                                          "sliding_window_pattern"};

void cohere(ConfigReader& config) {
  kv_heads(config);
  config.rotary(0.0);
}

// Layers without a window have no positions.
void cohere2(ConfigReader& config) {
  cohere(config);
  if (!config.window_layers(kUsualWindow)) {
    config.window(kUsualWindow);
    const std::int64_t pattern = config.layers("sliding_window_pattern", 4, 1);
    const std::string mask(static_cast<std::size_t>(pattern) - 1, '1');
    config.set("model.window_layers", fmt::format("\"{}0\"", mask), "sliding_window_pattern");
  }
  if (config.value_of("model.window").empty()) {
    config.set("model.rope_layers", "\"0\"", "sliding_window");
  } else if (const std::string mask = config.value_of("model.window_layers"); !mask.empty()) {
    config.set("model.rope_layers", mask, "layer_types");
  }
}

void write_cohere(FamilyWriter& config) {
  config.kv_heads();
  config.rotary();
}

void write_cohere2(FamilyWriter& config) {
  write_cohere(config);
  config.window_layers();
}

constexpr Family kForm = [] {
  Family form = usual_form(kModules, kFixed, kKeys, kDemands);
  form.harmless = kHarmless;
  form.interleaved_rotary = true;
  form.words = kWords;
  return form;
}();
constexpr Family kForm2 = [] {
  Family form = kForm;
  form.words = kSilu;
  form.demands = kDemands2;
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
