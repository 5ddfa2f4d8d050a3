// Mixtures of experts in the form of Llama: Mixtral, Qwen 2 and 3, OLMoE, Granite, MiniMax M2.
#include <algorithm>
#include <nlohmann/json.hpp>
#include <string>

#include "engine/huggingface/families/expert_rows.h"
#include "engine/huggingface/families/families.h"

namespace sherd::huggingface {
namespace {

constexpr auto kMixtralExperts = separate_experts({.ours = "block.{}.moe.router",
                                                   .theirs = "layers.{}.block_sparse_moe.gate",
                                                   .stacked = "layers.{}.mlp.gate.weight"},
                                                  "layers.{}.block_sparse_moe.experts.{}.w1",
                                                  "layers.{}.block_sparse_moe.experts.{}.w3",
                                                  "layers.{}.block_sparse_moe.experts.{}.w2");
constexpr auto kMinimaxExperts = separate_experts(
    {.ours = "block.{}.moe.router",
     .theirs = "layers.{}.block_sparse_moe.gate",
     .stacked = "layers.{}.mlp.gate.weight",
     .bias = "layers.{}.block_sparse_moe.e_score_correction_bias",
     .stacked_bias = "layers.{}.mlp.e_score_correction_bias"},
    "layers.{}.block_sparse_moe.experts.{}.w1", "layers.{}.block_sparse_moe.experts.{}.w3",
    "layers.{}.block_sparse_moe.experts.{}.w2");
constexpr auto kQwenExperts = projected_experts({"block.{}.moe.router", "layers.{}.mlp.gate"});
constexpr Module kGraniteExperts[] = {
    {"block.{}.moe.router", "layers.{}.block_sparse_moe.router.layer"},
    {"block.{}.moe.experts.up", "layers.{}.block_sparse_moe.input_linear", Part::kStackedGateUp},
    {"block.{}.moe.experts.down", "layers.{}.block_sparse_moe.output_linear", Part::kStackedDown},
};
constexpr Module kGraniteShared[] = {
    {"block.{}.mlp.up", "layers.{}.shared_mlp.input_linear"},
    {"block.{}.mlp.down", "layers.{}.shared_mlp.output_linear"},
};
constexpr std::span<const Module> kMixtralModules[] = {kAroundExperts, kSecondNorm,
                                                       kMixtralExperts};
constexpr std::span<const Module> kMinimaxModules[] = {kAroundExperts, kSecondNorm,
                                                       kMinimaxExperts};
constexpr std::span<const Module> kQwenModules[] = {kUsualModules, kSecondNorm, kQwenExperts};
constexpr std::span<const Module> kGraniteModules[] = {kAroundExperts, kSecondNorm,
                                                       kGraniteExperts};
constexpr std::span<const Module> kGraniteSharedModules[] = {kAroundExperts, kSecondNorm,
                                                             kGraniteExperts, kGraniteShared};

constexpr ConfigKey kMixtralChoice[] = {
    {"num_local_experts", "moe.num_experts", "8"},
    {"num_experts_per_tok", "moe.experts_per_token", "2"},
};
constexpr ConfigKey kMinimaxChoice[] = {
    {"num_local_experts", "moe.num_experts", "256"},
    {"num_experts_per_tok", "moe.experts_per_token", "8"},
};
constexpr ConfigKey kQwen3Choice[] = {
    {"num_local_experts", "moe.num_experts", "128"},
    {"num_experts_per_tok", "moe.experts_per_token", "8"},
    {"moe_intermediate_size", "moe.ffn_hidden_size", "768"},
    {"norm_topk_prob", "moe.normalize_weights", "false"},
};
constexpr ConfigKey kOlmoeChoice[] = {
    {"num_experts", "moe.num_experts", "64"},
    {"num_experts_per_tok", "moe.experts_per_token", "8"},
    {"norm_topk_prob", "moe.normalize_weights", "false"},
};
constexpr ConfigKey kGraniteWidth[] = {
    {"shared_intermediate_size", "moe.shared_ffn_hidden_size", "0"},
};
constexpr std::span<const ConfigKey> kMixtralKeys[] = {kUsualSizes, kTenthNormAndHead,
                                                       kMixtralChoice};
constexpr std::span<const ConfigKey> kMinimaxKeys[] = {kUsualSizes, kNormAndHead, kMinimaxChoice};
constexpr std::span<const ConfigKey> kQwen3Keys[] = {kUsualSizes, kNormAndHead, kQwen3Choice};
constexpr std::span<const ConfigKey> kOlmoeKeys[] = {kUsualSizes, kTenthNormAndHead, kOlmoeChoice};
constexpr std::span<const ConfigKey> kGraniteKeys[] = {kUsualSizes, kNormAndHead, kMixtralChoice};
constexpr std::span<const ConfigKey> kGraniteSharedKeys[] = {kUsualSizes, kNormAndHead,
                                                             kMixtralChoice, kGraniteWidth};
constexpr Fixed kNormalised[] = {{"model.norm", "rmsnorm"}, {"moe.normalize_weights", "true"}};
constexpr Fixed kOlmoe[] = {{"model.norm", "rmsnorm"}, {"model.qk_norm", "projection"}};
constexpr Fixed kMinimax[] = {{"model.norm", "rmsnorm"},
                              {"model.qk_norm", "projection"},
                              {"moe.score", "sigmoid"},
                              {"moe.normalize_weights", "true"},
                              {"moe.correction_bias", "true"}};
constexpr Fixed kSoftmaxOfChosen[] = {{"model.norm", "rmsnorm"},
                                      {"moe.score", "softmax_of_chosen"}};
constexpr Demand kUnclamped[] = {{"clip_qkv", "null"}};

constexpr ConfigKey kQwen2Choice[] = {
    {"num_experts", "moe.num_experts", "60"},
    {"num_experts_per_tok", "moe.experts_per_token", "4"},
    {"moe_intermediate_size", "moe.ffn_hidden_size", "1408"},
    {"shared_expert_intermediate_size", "moe.shared_ffn_hidden_size", "5632"},
    {"norm_topk_prob", "moe.normalize_weights", "false"},
};
constexpr std::span<const ConfigKey> kQwen2Keys[] = {kUsualSizes, kNormAndHead, kQwen2Choice};
constexpr auto kSharedExpert =
    shared_expert("layers.{}.mlp.shared_expert.gate_proj", "layers.{}.mlp.shared_expert.up_proj",
                  "layers.{}.mlp.shared_expert.down_proj");
constexpr Module kSharedGate[] = {{"block.{}.moe.shared_gate", "layers.{}.mlp.shared_expert_gate"}};
constexpr std::span<const Module> kQwen2Modules[] = {kSharedExpert,  kSharedGate, kDenseMlp,
                                                     kAroundExperts, kSecondNorm, kQwenExperts};

// Layer i has experts if it isn't in mlp_only_layers and decoder_sparse_step divides i + 1.
std::string sparse_layers(ConfigReader& config) {
  const std::int64_t layers = config.layers("num_hidden_layers", 0);
  const std::int64_t step = config.layers("decoder_sparse_step", 1, 1);
  std::string mask;
  for (std::int64_t i = 0; i < layers; ++i) mask += (i + 1) % step == 0 ? '1' : '0';
  const nlohmann::json& dense = config.at("mlp_only_layers");
  if (!dense.is_null() && !dense.is_array()) config.refuse("mlp_only_layers", "isn't a list");
  for (const auto& layer : dense) {
    if (!layer.is_number_integer()) config.refuse("mlp_only_layers", "holds what isn't a number");
    const auto number = layer.get<std::int64_t>();
    if (number >= 0 && number < layers) mask[static_cast<std::size_t>(number)] = '0';
  }
  experts_in_layers(config, mask, "mlp_only_layers");
  return mask;
}

void without_noise(ConfigReader& config) {
  if (config.number("router_jitter_noise").value_or(0.0) != 0.0) {
    config.refuse("router_jitter_noise", "isn't 0; noise on what the router reads isn't supported");
  }
}

void mixtral(ConfigReader& config) {
  kv_heads(config, 8);
  config.head_width();
  config.rotary({.theta = 1000000.0});
  config.window();
  without_noise(config);
}

void qwen2_moe(ConfigReader& config) {
  config.head_width();
  kv_heads(config, 16);
  config.rotary();
  if (config.truth("qkv_bias").value_or(true)) config.set("model.qkv_bias", "true", "qkv_bias");
  qwen_windows(config);
  config.set("moe.shared_gate", "true", "shared_expert_intermediate_size");
  sparse_layers(config);
}

// All layers have the window, or none has.
void qwen3_moe(ConfigReader& config) {
  config.head_width();
  kv_heads(config, 4);
  config.rotary();
  config.set("model.qk_norm", "head");
  attention_biases(config);
  sparse_layers(config);
  config.use("sliding_window");
  config.use("max_window_layers");
  if (config.truth("use_sliding_window").value_or(false)) config.window(kUsualWindow);
}

void olmoe(ConfigReader& config) {
  kv_heads(config, 16);
  config.head_width();
  config.rotary();
  attention_biases(config);
}

// Released folders say how many numbers of a head are rotated, in a key of their own.
void minimax_m2(ConfigReader& config) {
  kv_heads(config, 8);
  config.head_width(128);
  const double width = config.number("head_dim").value_or(128.0);
  const std::optional<double> rotated = config.number("rotary_dim");
  config.rotary({.theta = 5000000.0, .fraction = rotated ? *rotated / width : 1.0});
  without_noise(config);
}

void granitemoe(ConfigReader& config) {
  kv_heads(config);
  config.head_width();
  config.rotary();
  attention_biases(config);
  granite_multipliers(config);
}

// Classes whose layers all have experts, as wide as intermediate_size says.
bool is_of_one_width(const FamilyWriter& config) {
  return config.has_experts_everywhere() &&
         config.whole("moe.ffn_hidden_size") == config.whole("model.ffn_hidden_size");
}

void write_mixtral(FamilyWriter& config) {
  if (!is_of_one_width(config)) return;
  config.kv_heads();
  config.head_width();
  config.rotary();
  config.window();
}

void write_qwen2_moe(FamilyWriter& config) {
  if (config.number("moe.num_experts") == 0.0) return;
  config.kv_heads();
  config.rotary();
  config.set("qkv_bias", config.truth("model.qkv_bias"));
  config.set("decoder_sparse_step", 1);
  config.dense_layers("mlp_only_layers");
  config.set("use_sliding_window", config.has_windows());
  if (config.has_windows()) config.window_layers();
}

// Version 4 reads num_experts, version 5 num_local_experts.
void write_qwen3_moe(FamilyWriter& config) {
  if (config.number("moe.num_experts") == 0.0) return;
  config.kv_heads();
  config.head_width();
  config.rotary();
  config.attention_bias();
  config.set("num_experts", config.whole("moe.num_experts"));
  config.set("decoder_sparse_step", 1);
  config.dense_layers("mlp_only_layers");
  config.set("use_sliding_window", config.has_windows());
  if (config.has_windows()) config.window();
}

void write_olmoe(FamilyWriter& config) {
  if (!is_of_one_width(config)) return;
  config.kv_heads();
  config.rotary();
  config.attention_bias();
}

void write_minimax_m2(FamilyWriter& config) {
  if (!is_of_one_width(config)) return;
  config.kv_heads();
  config.head_width();
  config.rotary_of_part();
}

void write_granitemoe(FamilyWriter& config) {
  if (!is_of_one_width(config)) return;
  config.kv_heads();
  config.rotary();
  config.attention_bias();
  write_granite_multipliers(config);
}

constexpr Family expert_form(std::span<const std::span<const Module>> modules,
                             std::span<const Fixed> fixed,
                             std::span<const std::span<const ConfigKey>> keys,
                             std::span<const Demand> demands = {}) {
  Family form = usual_form(modules, fixed, keys, demands);
  form.harmless = kBalanceSettings;
  return form;
}
constexpr Alias kQwen3Aliases[] = {{"num_experts", "num_local_experts"}};
constexpr Family kQwen3Form = [] {
  Family form = expert_form(kQwenModules, kRmsNorm, kQwen3Keys);
  form.aliases = kQwen3Aliases;
  return form;
}();

constexpr Family kFamilies[] = {
    family_of_form(expert_form(kMixtralModules, kNormalised, kMixtralKeys), "mixtral",
                   "MixtralForCausalLM", mixtral, write_mixtral),
    family_of_form(expert_form(kQwen2Modules, kRmsNorm, kQwen2Keys), "qwen2_moe",
                   "Qwen2MoeForCausalLM", qwen2_moe, write_qwen2_moe),
    family_of_form(kQwen3Form, "qwen3_moe", "Qwen3MoeForCausalLM", qwen3_moe, write_qwen3_moe),
    family_of_form(expert_form(kQwenModules, kOlmoe, kOlmoeKeys, kUnclamped), "olmoe",
                   "OlmoeForCausalLM", olmoe, write_olmoe),
    family_of_form(expert_form(kMinimaxModules, kMinimax, kMinimaxKeys), "minimax_m2",
                   "MiniMaxM2ForCausalLM", minimax_m2, write_minimax_m2),
    family_of_form(expert_form(kGraniteModules, kSoftmaxOfChosen, kGraniteKeys), "granitemoe",
                   "GraniteMoeForCausalLM", granitemoe, write_granitemoe),
    family_of_form(expert_form(kGraniteSharedModules, kSoftmaxOfChosen, kGraniteSharedKeys),
                   "granitemoeshared", "GraniteMoeSharedForCausalLM", granitemoe),
};

}  // namespace

void experts_in_layers(ConfigReader& config, const std::string& mask, std::string_view from) {
  if (mask.find('0') == std::string::npos) return;
  if (mask.find('1') == std::string::npos) {
    config.set("moe.num_experts", "0", from);
  } else {
    config.set("moe.layers", "\"" + mask + "\"", from);
  }
}

void experts_after_dense_layers(ConfigReader& config, std::int64_t missing) {
  constexpr std::string_view kKey = "first_k_dense_replace";
  const std::int64_t layers = config.layers("num_hidden_layers", 0);
  const std::int64_t dense = std::min(config.layers(kKey, missing), layers);
  std::string mask(static_cast<std::size_t>(dense), '0');
  mask.resize(static_cast<std::size_t>(layers), '1');
  experts_in_layers(config, mask, kKey);
}

void shared_experts(ConfigReader& config, std::string_view count, double missing) {
  const double experts = config.number(count).value_or(missing);
  if (experts <= 0.0) return;
  config.set("moe.shared_ffn_hidden_size",
             experts * std::stod(config.value_of("moe.ffn_hidden_size")), count);
}

void write_experts_after_dense_layers(FamilyWriter& config) {
  std::int64_t dense = 0;
  while (dense < config.whole("model.num_layers") && !config.has_experts(dense)) ++dense;
  config.set("first_k_dense_replace", dense);
}

void write_shared_experts(FamilyWriter& config, std::string_view count) {
  const std::int64_t width = config.whole("moe.ffn_hidden_size");
  config.set(count, width > 0 ? config.whole("moe.shared_ffn_hidden_size") / width : 0);
}

std::span<const Family> expert_families() {
  return kFamilies;
}

}  // namespace sherd::huggingface
