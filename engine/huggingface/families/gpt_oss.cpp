// gpt-oss: attention with sinks, and experts with biases whose gate and up columns take turns.
#include <cmath>
#include <nlohmann/json.hpp>

#include "engine/huggingface/families/expert_rows.h"
#include "engine/huggingface/families/families.h"

namespace sherd::huggingface {
namespace {

constexpr Module kSinksAndExperts[] = {
    {.ours = "block.{}.attention.sinks", .theirs = "layers.{}.self_attn.sinks", .bare = true},
    {"block.{}.moe.router", "layers.{}.mlp.router"},
    {.ours = "block.{}.moe.experts.up",
     .theirs = "layers.{}.mlp.experts.gate_up_proj",
     .part = Part::kPairedGateUp,
     .bias = "layers.{}.mlp.experts.gate_up_proj_bias"},
    {.ours = "block.{}.moe.experts.down",
     .theirs = "layers.{}.mlp.experts.down_proj",
     .part = Part::kTurnedExperts,
     .bias = "layers.{}.mlp.experts.down_proj_bias"},
};
constexpr std::span<const Module> kModules[] = {kSinksAndExperts, kAroundExperts, kSecondNorm};

constexpr ConfigKey kOthers[] = {
    {"rms_norm_eps", "model.norm_eps", "1e-05"},
    {"tie_word_embeddings", "model.tie_embeddings", "false"},
    {"num_local_experts", "moe.num_experts", "128"},
    {"num_experts_per_tok", "moe.experts_per_token", "4"},
    {"intermediate_size", "moe.ffn_hidden_size", "2880"},
};
constexpr std::span<const ConfigKey> kKeys[] = {kUsualSizes, kOthers};
constexpr Fixed kFixed[] = {
    {"model.norm", "rmsnorm"},         {"model.activation", "clamped_swiglu"},
    {"model.attention_sinks", "true"}, {"model.qkv_bias", "true"},
    {"model.output_bias", "true"},     {"moe.bias", "true"},
    {"moe.score", "softmax_of_chosen"}};
constexpr Demand kDemands[] = {{"attention_bias", "true"},
                               {"hidden_act", "silu"},
                               {"swiglu_alpha", "1.702"},
                               {"swiglu_limit", "7.0"}};
constexpr std::string_view kHarmless[] = {"output_router_logits", "router_aux_loss_coef",
                                          "experts_per_token", "initial_context_length"};

// What the class takes if the file has no table.
void class_s_yarn(ConfigReader& config) {
  config.set("model.rope_scaling", "yarn");
  config.set("model.rope_factor", "32");
  config.set("model.rope_beta_fast", "32");
  config.set("model.rope_beta_slow", "1");
  config.set("model.rope_original_length", "4096");
  config.set("model.rope_truncate", "false");
}

// Every second layer has a window, from the first on.
void gpt_oss(ConfigReader& config) {
  kv_heads(config, 8);
  config.head_width(64);
  config.rotary({.theta = 150000.0});
  if (config.at("rope_parameters").empty() && config.at("rope_scaling").empty())
    class_s_yarn(config);
  auto mask = config.layer_types();
  if (!mask) {
    mask.emplace();
    for (std::int64_t i = 0; i < config.layers("num_hidden_layers", 0); ++i) {
      *mask += i % 2 == 0 ? '1' : '0';
    }
  }
  config.windows(*mask, "128");
}

void write_gpt_oss(FamilyWriter& config) {
  if (!config.has_experts_everywhere() || !config.truth("moe.bias")) return;
  config.kv_heads();
  config.head_width();
  config.rotary();
  config.window_layers();
}

constexpr Family kGptOss = [] {
  Family form = usual_form(kModules, kFixed, kKeys, kDemands);
  form.words = {};
  form.harmless = kHarmless;
  return form;
}();
constexpr Family kFamilies[] = {
    family_of_form(kGptOss, "gpt_oss", "GptOssForCausalLM", gpt_oss, write_gpt_oss),
};

}  // namespace

std::span<const Family> gpt_oss_families() {
  return kFamilies;
}

}  // namespace sherd::huggingface
