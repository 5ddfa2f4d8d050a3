// Latent attention and many small experts: DeepSeek V2 and V3, and Kimi K2, which has V3's form.
#include <cmath>
#include <nlohmann/json.hpp>

#include "engine/huggingface/families/expert_rows.h"
#include "engine/huggingface/families/families.h"

namespace sherd::huggingface {
namespace {

constexpr Module kLatentAttention[] = {
    {"block.{}.attention.query", "layers.{}.self_attn.q_proj", Part::kLatentQuery},
    {"block.{}.attention.query_down", "layers.{}.self_attn.q_a_proj"},
    {"block.{}.attention.query_latent_norm", "layers.{}.self_attn.q_a_layernorm"},
    {"block.{}.attention.query_up", "layers.{}.self_attn.q_b_proj", Part::kLatentQuery},
    {"block.{}.attention.kv_down", "layers.{}.self_attn.kv_a_proj_with_mqa", Part::kLatentKey},
    {"block.{}.attention.kv_latent_norm", "layers.{}.self_attn.kv_a_layernorm"},
    {"block.{}.attention.kv_up", "layers.{}.self_attn.kv_b_proj"},
};
constexpr auto kExpertsV2 = projected_experts({"block.{}.moe.router", "layers.{}.mlp.gate"});
constexpr auto kExpertsV3 =
    projected_experts({.ours = "block.{}.moe.router",
                       .theirs = "layers.{}.mlp.gate",
                       .bias = "layers.{}.mlp.gate.e_score_correction_bias"});
constexpr std::span<const Module> kModulesV2[] = {kLatentAttention, kSharedExperts, kDenseMlp,
                                                  kAroundExperts,   kSecondNorm,    kExpertsV2};
constexpr std::span<const Module> kModulesV3[] = {kLatentAttention, kSharedExperts, kDenseMlp,
                                                  kAroundExperts,   kSecondNorm,    kExpertsV3,
                                                  kPrediction};

constexpr ConfigKey kLatents[] = {
    {"kv_lora_rank", "model.kv_lora_rank", "512"},
    {"qk_nope_head_dim", "model.qk_nope_head_dim", "128"},
    {"qk_rope_head_dim", "model.qk_rope_head_dim", "64"},
    {"v_head_dim", "model.v_head_dim", "128"},
    {"rms_norm_eps", "model.norm_eps", "1e-06"},
    {"tie_word_embeddings", "model.tie_embeddings", "false"},
};
constexpr ConfigKey kChoiceV2[] = {
    {"n_routed_experts", "moe.num_experts", "64"},
    {"num_experts_per_tok", "moe.experts_per_token"},
    {"moe_intermediate_size", "moe.ffn_hidden_size", "1407"},
    {"routed_scaling_factor", "moe.weight_scale", "1"},
};
constexpr ConfigKey kChoiceV3[] = {
    {"n_routed_experts", "moe.num_experts", "256"},
    {"num_experts_per_tok", "moe.experts_per_token", "8"},
    {"moe_intermediate_size", "moe.ffn_hidden_size", "2048"},
    {"routed_scaling_factor", "moe.weight_scale", "2.5"},
    {"n_group", "moe.num_groups", "8"},
    {"topk_group", "moe.kept_groups", "4"},
    {"norm_topk_prob", "moe.normalize_weights", "true"},
};
constexpr std::span<const ConfigKey> kKeysV2[] = {kUsualSizes, kLatents, kChoiceV2};
constexpr std::span<const ConfigKey> kKeysV3[] = {kUsualSizes, kLatents, kChoiceV3};
constexpr Fixed kFixedV2[] = {{"model.norm", "rmsnorm"}, {"moe.normalize_weights", "false"}};
constexpr Fixed kFixedV3[] = {
    {"model.norm", "rmsnorm"}, {"moe.score", "sigmoid"}, {"moe.correction_bias", "true"}};
// DeepSeek's code normalises V2's weights with norm_topk_prob, transformers doesn't.
constexpr Demand kDemandsV2[] = {{"attention_bias", "false"},
                                 {"mlp_bias", "false"},
                                 {"moe_layer_freq", "1"},
                                 {"scoring_func", "softmax"},
                                 {"norm_topk_prob", "false"}};
constexpr Demand kDemandsV3[] = {{"attention_bias", "false"},
                                 {"moe_layer_freq", "1"},
                                 {"rope_interleave", "true"},
                                 {"scoring_func", "sigmoid"},
                                 {"topk_method", "noaux_tc"}};

// yarn's mscale_all_dim: scores are multiplied by the square of 0.1 m ln(factor) + 1.
void scale_of_yarn(ConfigReader& config) {
  const nlohmann::json& old = config.at("rope_scaling");
  const nlohmann::json& table = old.empty() ? config.at("rope_parameters") : old;
  const double head = config.number("qk_nope_head_dim").value_or(128.0) +
                      config.number("qk_rope_head_dim").value_or(64.0);
  if (!table.is_object() || !table.contains("mscale_all_dim") ||
      !table["mscale_all_dim"].is_number()) {
    return;
  }
  const double m = table["mscale_all_dim"];
  if (m == 0.0) return;
  if (config.value_of("model.rope_scaling").empty()) {
    const std::string type = table.value("rope_type", table.value("type", std::string("default")));
    if (type == "default") return;
    config.refuse("mscale_all_dim", "isn't 0 next to rope_type dynamic, which isn't supported");
  }
  const double factor = std::stod(config.value_of("model.rope_factor"));
  if (factor <= 1.0) return;
  const double mscale = 0.1 * m * std::log(factor) + 1.0;
  config.set("model.attention_scale", mscale * mscale / std::sqrt(head), "mscale_all_dim");
}

void latent_attention(ConfigReader& config) {
  const auto rank = config.value("q_lora_rank", "1536");
  config.set("model.q_lora_rank", rank.value_or("0"), "q_lora_rank");
  const double heads = config.number("num_attention_heads").value_or(0.0);
  const double kv_heads = config.number("num_key_value_heads").value_or(heads);
  if (kv_heads != heads) {
    config.refuse("num_key_value_heads",
                  "differs from num_attention_heads, but with latent "
                  "attention each query head has its own keys");
  }
  config.prediction_layers();
  config.use("head_dim");  // both follow from the others
  config.use("qk_head_dim");
  config.rotary();
  scale_of_yarn(config);
}

void deepseek_v2(ConfigReader& config) {
  latent_attention(config);
  shared_experts(config, "n_shared_experts", 2);
  experts_after_dense_layers(config, 0);
  const std::string method = config.text("topk_method").value_or("greedy");
  const auto groups = config.value("n_group"), kept = config.value("topk_group");
  if (method == "greedy") return;
  if (method != "group_limited_greedy" || !groups || !kept) {
    config.refuse("topk_method",
                  "isn't greedy, or group_limited_greedy with n_group and "
                  "topk_group");
  }
  config.set("moe.num_groups", *groups, "n_group");
  config.set("moe.kept_groups", *kept, "topk_group");
}

void deepseek_v3(ConfigReader& config) {
  // transformers takes null for false, or fails; the tables take it for missing.
  for (const char* key : {"norm_topk_prob", "n_group", "topk_group", "rope_interleave"}) {
    if (config.is_null(key)) config.refuse(key, "is null; write a value");
  }
  latent_attention(config);
  shared_experts(config, "n_shared_experts", 1);
  experts_after_dense_layers(config, 3);
}

void write_latent_attention(FamilyWriter& config) {
  const std::int64_t rank = config.whole("model.q_lora_rank");
  rank > 0 ? config.set("q_lora_rank", rank) : config.set_null("q_lora_rank");
  config.set("num_key_value_heads", config.whole("model.num_attention_heads"));
  config.rotary();
  write_shared_experts(config, "n_shared_experts");
  write_experts_after_dense_layers(config);
}

void write_deepseek_v2(FamilyWriter& config) {
  if (config.number("model.kv_lora_rank") == 0.0 || config.number("moe.num_experts") == 0.0) return;
  write_latent_attention(config);
  const bool grouped = config.number("moe.num_groups") > 1.0;
  config.set_text("topk_method", grouped ? "group_limited_greedy" : "greedy");
  if (!grouped) return;
  config.set("n_group", config.whole("moe.num_groups"));
  config.set("topk_group", config.whole("moe.kept_groups"));
}

void write_deepseek_v3(FamilyWriter& config) {
  if (config.number("model.kv_lora_rank") == 0.0 || config.number("moe.num_experts") == 0.0) return;
  write_latent_attention(config);
}

constexpr Family form_of(std::span<const std::span<const Module>> modules,
                         std::span<const Fixed> fixed,
                         std::span<const std::span<const ConfigKey>> keys,
                         std::span<const Demand> demands) {
  Family form = usual_form(modules, fixed, keys, demands);
  form.harmless = kDeepseekHarmless;
  form.interleaved_rotary = true;
  form.peft_takes_mlp_for_experts = true;
  return form;
}
constexpr Family kFormV3 = form_of(kModulesV3, kFixedV3, kKeysV3, kDemandsV3);
constexpr Family kFormOfKimi = [] {
  Family form = kFormV3;
  form.exported_as = "deepseek_v3";
  return form;
}();
constexpr Family kFamilies[] = {
    family_of_form(form_of(kModulesV2, kFixedV2, kKeysV2, kDemandsV2), "deepseek_v2",
                   "DeepseekV2ForCausalLM", deepseek_v2, write_deepseek_v2),
    family_of_form(kFormV3, "deepseek_v3", "DeepseekV3ForCausalLM", deepseek_v3, write_deepseek_v3),
    family_of_form(kFormOfKimi, "kimi_k2", "DeepseekV3ForCausalLM", deepseek_v3),
};

}  // namespace

std::span<const Family> deepseek_families() {
  return kFamilies;
}

}  // namespace sherd::huggingface
