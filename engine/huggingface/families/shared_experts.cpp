// Routed experts next to shared ones, with usual attention: GLM 4.5, dots.llm1, ERNIE 4.5, Hunyuan.
#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "engine/huggingface/families/expert_rows.h"
#include "engine/huggingface/families/families.h"

namespace sherd::huggingface {
namespace {

constexpr auto kBiasedExperts =
    projected_experts({.ours = "block.{}.moe.router",
                       .theirs = "layers.{}.mlp.gate",
                       .bias = "layers.{}.mlp.gate.e_score_correction_bias"});
constexpr auto kErnieExperts =
    projected_experts({.ours = "block.{}.moe.router",
                       .theirs = "layers.{}.mlp.gate",
                       .stacked = "layers.{}.mlp.gate.weight",
                       .bias = "layers.{}.mlp.moe_statics.e_score_correction_bias",
                       .stacked_bias = "layers.{}.mlp.gate.moe_statics.e_score_correction_bias",
                       .bias_in_row = true});
constexpr auto kHunyuanExperts =
    projected_experts({"block.{}.moe.router", "layers.{}.mlp.gate.wg"});
constexpr auto kHunyuanShared =
    shared_expert("layers.{}.mlp.shared_mlp.gate_proj", "layers.{}.mlp.shared_mlp.up_proj",
                  "layers.{}.mlp.shared_mlp.down_proj");
constexpr Module kHunyuanNorms[] = {
    {"block.{}.attention.query_norm", "layers.{}.self_attn.query_layernorm", Part::kHeads},
    {"block.{}.attention.key_norm", "layers.{}.self_attn.key_layernorm", Part::kHeads},
};
constexpr std::span<const Module> kBiasedModules[] = {kSharedExperts, kDenseMlp, kAroundExperts,
                                                      kSecondNorm, kBiasedExperts};
constexpr std::span<const Module> kGlmModules[] = {kSharedExperts, kDenseMlp,      kAroundExperts,
                                                   kSecondNorm,    kBiasedExperts, kPrediction};
constexpr std::span<const Module> kErnieModules[] = {kSharedExperts, kDenseMlp, kAroundExperts,
                                                     kSecondNorm, kErnieExperts};
constexpr std::span<const Module> kHunyuanModules[] = {
    kHunyuanNorms, kHunyuanShared, kAroundExperts, kSecondNorm, kHunyuanExperts};
constexpr std::span<const Module> kHunyuanDenseModules[] = {kHunyuanNorms, kSecondNorm,
                                                            kUsualModules};

constexpr ConfigKey kErnieNormAndHead[] = {
    {"rms_norm_eps", "model.norm_eps", "1e-05"},
    {"tie_word_embeddings", "model.tie_embeddings", "true"},
};
constexpr ConfigKey kGroups[] = {
    {"routed_scaling_factor", "moe.weight_scale", "1"},
    {"n_group", "moe.num_groups", "1"},
    {"topk_group", "moe.kept_groups", "1"},
};
constexpr ConfigKey kGlmChoice[] = {
    {"n_routed_experts", "moe.num_experts", "128"},
    {"num_experts_per_tok", "moe.experts_per_token", "8"},
    {"moe_intermediate_size", "moe.ffn_hidden_size", "1408"},
    {"norm_topk_prob", "moe.normalize_weights", "true"},
};
constexpr ConfigKey kDotsChoice[] = {
    {"n_routed_experts", "moe.num_experts"},
    {"num_experts_per_tok", "moe.experts_per_token"},
    {"moe_intermediate_size", "moe.ffn_hidden_size", "1408"},
    {"norm_topk_prob", "moe.normalize_weights", "false"},
};
constexpr ConfigKey kErnieChoice[] = {
    {"moe_num_experts", "moe.num_experts", "64"},
    {"moe_k", "moe.experts_per_token", "6"},
    {"moe_intermediate_size", "moe.ffn_hidden_size", "1536"},
};
constexpr std::span<const ConfigKey> kGlmKeys[] = {kUsualSizes, kTenthNormAndHead, kGlmChoice,
                                                   kGroups};
constexpr std::span<const ConfigKey> kDotsKeys[] = {kUsualSizes, kNormAndHead, kDotsChoice,
                                                    kGroups};
constexpr std::span<const ConfigKey> kErnieKeys[] = {kUsualSizes, kErnieNormAndHead, kErnieChoice};
constexpr std::span<const ConfigKey> kHunyuanKeys[] = {kUsualSizes, kTenthNormAndHead};

constexpr Fixed kBySigmoid[] = {
    {"model.norm", "rmsnorm"}, {"moe.score", "sigmoid"}, {"moe.correction_bias", "true"}};
constexpr Fixed kErnie[] = {
    {"model.norm", "rmsnorm"}, {"moe.normalize_weights", "true"}, {"moe.correction_bias", "true"}};
constexpr Fixed kHunyuan[] = {{"model.norm", "rmsnorm"},
                              {"model.qk_norm", "head_after_rope"},
                              {"moe.normalize_weights", "true"}};
constexpr Fixed kHunyuanDense[] = {{"model.norm", "rmsnorm"}, {"model.qk_norm", "head_after_rope"}};
constexpr Demand kDemands[] = {
    {"moe_layer_freq", "1"}, {"scoring_func", "sigmoid"}, {"topk_method", "noaux_tc"}};
// Its folders say noaux_tc of the scores, too, which transformers doesn't read.
constexpr Demand kDotsDemands[] = {{"moe_layer_freq", "1"}, {"topk_method", "noaux_tc"}};
// Its sums of probabilities are never as small.
constexpr Demand kErnieDemands[] = {{"moe_norm_min", "1e-12"}};

// Biases of queries, keys and values only.
void glm4_moe(ConfigReader& config) {
  kv_heads(config, 8);
  config.head_width();
  config.rotary({.fraction = 0.5});
  if (config.truth("attention_bias").value_or(false)) {
    config.set("model.qkv_bias", "true", "attention_bias");
  }
  if (config.truth("use_qk_norm").value_or(false)) {
    config.set("model.qk_norm", "head", "use_qk_norm");
  }
  config.prediction_layers();
  shared_experts(config, "n_shared_experts", 1);
  experts_after_dense_layers(config, 1);
}

// Layers from max_window_layers on have the window, unless layer_types says which.
void dots1(ConfigReader& config) {
  kv_heads(config, 32);
  config.head_width();
  config.rotary();
  config.set("model.qk_norm", "head");
  attention_biases(config);
  shared_experts(config, "n_shared_experts", 0);
  experts_after_dense_layers(config, 0);
  auto mask = config.layer_types();
  const std::int64_t layers = config.layers("num_hidden_layers", 0);
  const std::int64_t full = config.layers("max_window_layers", 62);
  config.use("sliding_window");
  if (!mask && !config.is_null("sliding_window") && full < layers) {
    mask = std::string(static_cast<std::size_t>(full), '0');
    mask->resize(static_cast<std::size_t>(layers), '1');
  }
  if (mask) config.windows(*mask, kUsualWindow);
}

// Layers i with start <= i <= end whose i + 1 is a multiple of the interval.
void ernie4_5_moe(ConfigReader& config) {
  kv_heads(config, 4);
  config.head_width();
  config.rotary({.theta = 500000.0});
  if (config.truth("use_bias").value_or(false)) {
    config.refuse("use_bias", "is true; biases of experts aren't supported");
  }
  config.prediction_layers();
  shared_experts(config, "moe_num_shared_experts", 2);
  const std::int64_t layers = config.layers("num_hidden_layers", 0);
  const double first = config.number("moe_layer_start_index").value_or(1);
  const double given = config.number("moe_layer_end_index").value_or(-1);
  const double last = given == -1.0 ? static_cast<double>(layers) - 1.0 : given;
  const std::int64_t interval = config.layers("moe_layer_interval", 1, 1);
  std::string mask;
  for (std::int64_t i = 0; i < layers; ++i) {
    const auto layer = static_cast<double>(i);
    const bool has = (i + 1) % interval == 0 && layer >= first && layer <= last;
    mask += has ? '1' : '0';
  }
  experts_in_layers(config, mask, "moe_layer_start_index");
}

// A number, or a list of the same number for every layer.
std::string same_in_all_layers(ConfigReader& config, std::string_view key) {
  const nlohmann::json& value = config.at(key);
  if (!value.is_array()) return config.text(key).value_or("1");
  for (const auto& layer : value) {
    if (!layer.is_number_integer() || layer != value[0]) {
      config.refuse(key, "differs between layers, which isn't supported");
    }
  }
  if (value.empty()) config.refuse(key, "is an empty list");
  return value[0].dump();
}

void hunyuan_attention(ConfigReader& config) {
  kv_heads(config);
  config.head_width();
  attention_biases(config);
  config.know_in_rope("alpha");
  config.rotary();
  const nlohmann::json& old = config.at("rope_scaling");
  const nlohmann::json& table = old.empty() ? config.at("rope_parameters") : old;
  if (!table.is_object() || !table.contains("alpha") || table["alpha"].is_null()) return;
  const std::string type = table.value("rope_type", table.value("type", std::string("default")));
  if (type != "dynamic") config.refuse("alpha", "is set, but the rope_type isn't dynamic");
  // A fixed alpha raises theta once: theta alpha^(K / (K - 2)).
  const double width =
      config.number("head_dim")
          .value_or(config.number("hidden_size").value_or(0.0) /
                    std::max(1.0, config.number("num_attention_heads").value_or(1.0)));
  const double theta = std::stod(config.value_of("model.rope_theta"));
  const double alpha = table["alpha"];
  config.set("model.rope_theta", theta * std::pow(alpha, width / (width - 2.0)), "alpha");
}

// One shared expert, as wide as a routed one.
void hunyuan_v1_moe(ConfigReader& config) {
  hunyuan_attention(config);
  const std::string width = config.text("intermediate_size").value_or("11008");
  config.set("moe.num_experts", same_in_all_layers(config, "num_experts"), "num_experts");
  config.set("moe.experts_per_token", same_in_all_layers(config, "moe_topk"), "moe_topk");
  config.set("moe.ffn_hidden_size", width, "intermediate_size");
  config.set("moe.shared_ffn_hidden_size", width, "intermediate_size");
  for (const char* key : {"moe_intermediate_size", "num_shared_expert"}) config.use(key);
}

bool has_experts(const FamilyWriter& config) {
  return config.number("moe.num_experts") > 0.0 && config.number("model.kv_lora_rank") == 0.0;
}

void write_glm4_moe(FamilyWriter& config) {
  if (!has_experts(config)) return;
  config.kv_heads();
  config.head_width();
  config.rotary_of_part();
  config.set("attention_bias", config.truth("model.qkv_bias"));
  config.set("use_qk_norm", config.text("model.qk_norm") == "head");
  write_shared_experts(config, "n_shared_experts");
  write_experts_after_dense_layers(config);
}

void write_dots1(FamilyWriter& config) {
  if (!has_experts(config)) return;
  config.kv_heads();
  config.head_width();
  config.rotary();
  config.attention_bias();
  config.window_layers();
  write_shared_experts(config, "n_shared_experts");
  write_experts_after_dense_layers(config);
}

void write_ernie4_5_moe(FamilyWriter& config) {
  if (!has_experts(config)) return;
  config.kv_heads();
  config.rotary();
  write_shared_experts(config, "moe_num_shared_experts");
  std::int64_t first = 0;
  while (first < config.whole("model.num_layers") && !config.has_experts(first)) ++first;
  config.set("moe_layer_start_index", first);
}

constexpr Family with_harmless(Family form) {
  form.harmless = kDeepseekHarmless;
  form.peft_takes_mlp_for_experts = true;
  return form;
}
constexpr Family kErnieForm = [] {
  Family form = usual_form(kErnieModules, kErnie, kErnieKeys, kErnieDemands);
  form.interleaved_rotary = true;
  return form;
}();
constexpr Family kFamilies[] = {
    family_of_form(with_harmless(usual_form(kGlmModules, kBySigmoid, kGlmKeys, kDemands)),
                   "glm4_moe", "Glm4MoeForCausalLM", glm4_moe, write_glm4_moe),
    family_of_form(with_harmless(usual_form(kBiasedModules, kBySigmoid, kDotsKeys, kDotsDemands)),
                   "dots1", "Dots1ForCausalLM", dots1, write_dots1),
    family_of_form(with_harmless(kErnieForm), "ernie4_5_moe", "Ernie4_5_MoeForCausalLM",
                   ernie4_5_moe, write_ernie4_5_moe),
    family_of_form(with_harmless(usual_form(kHunyuanModules, kHunyuan, kHunyuanKeys)),
                   "hunyuan_v1_moe", "HunYuanMoEV1ForCausalLM", hunyuan_v1_moe),
    family_of_form(usual_form(kHunyuanDenseModules, kHunyuanDense, kHunyuanKeys),
                   "hunyuan_v1_dense", "HunYuanDenseV1ForCausalLM", hunyuan_attention),
};

}  // namespace

std::span<const Family> shared_expert_families() {
  return kFamilies;
}

}  // namespace sherd::huggingface
