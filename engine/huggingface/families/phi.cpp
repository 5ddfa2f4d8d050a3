// Phi-3 and its successors: Llama's form with query, key and value in one matrix, gate and up too.
// Phi-3.5-MoE: Mixtral's names, LayerNorm, biases, and sparsemixer.
#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "engine/huggingface/families/expert_rows.h"
#include "engine/huggingface/families/families.h"

namespace sherd::huggingface {
namespace {

constexpr Module kNames[] = {
    {"embedding.token", "embed_tokens"},
    {"block.{}.norm1", "layers.{}.input_layernorm"},
    {"block.{}.attention.qkv", "layers.{}.self_attn.qkv_proj", Part::kQkv},
    {"block.{}.attention.output", "layers.{}.self_attn.o_proj"},
    {"block.{}.norm2", "layers.{}.post_attention_layernorm"},
    {"block.{}.mlp.up", "layers.{}.mlp.gate_up_proj"},
    {"block.{}.mlp.down", "layers.{}.mlp.down_proj"},
    {"final_norm", "norm"},
    {"head", "lm_head", Part::kWhole, false, true},
};
constexpr std::span<const Module> kModules[] = {kNames};
constexpr ConfigKey kNormAndHead[] = {
    {"rms_norm_eps", "model.norm_eps", "1e-05"},
    {"tie_word_embeddings", "model.tie_embeddings", "false"},
};
constexpr std::span<const ConfigKey> kKeys[] = {kUsualSizes, kNormAndHead};
constexpr Demand kDemands[] = {{"attention_bias", "false"}};

void phi3(ConfigReader& config) {
  kv_heads(config);
  config.head_width();
  config.rotary({.fraction = 1.0, .length = 4096.0, .longrope_alone = true});
  config.use("original_max_position_embeddings");
  config.window();
}

void write_phi3(FamilyWriter& config) {
  const std::string scaling = config.text("model.rope_scaling");
  if (scaling != "none" && scaling != "longrope") return;  // the class has no other
  config.kv_heads();
  config.head_width();
  config.rotary_of_part();
  config.window();
}

constexpr auto kExperts = separate_experts({.ours = "block.{}.moe.router",
                                            .theirs = "layers.{}.block_sparse_moe.gate",
                                            .stacked = "layers.{}.mlp.router.weight"},
                                           "layers.{}.block_sparse_moe.experts.{}.w1",
                                           "layers.{}.block_sparse_moe.experts.{}.w3",
                                           "layers.{}.block_sparse_moe.experts.{}.w2");
constexpr std::span<const Module> kMixtureModules[] = {kAroundExperts, kSecondNorm, kExperts};
constexpr ConfigKey kMixture[] = {
    {"rms_norm_eps", "model.norm_eps", "1e-05"},
    {"tie_word_embeddings", "model.tie_embeddings", "false"},
    {"lm_head_bias", "model.head_bias", "false"},
    {"num_local_experts", "moe.num_experts", "16"},
    {"router_jitter_noise", "moe.jitter", "0.01"},
};
constexpr std::span<const ConfigKey> kMixtureKeys[] = {kUsualSizes, kMixture};
constexpr Fixed kMixtureFixed[] = {
    {"model.norm", "layernorm"}, {"model.norm_bias", "true"}, {"moe.score", "sparsemixer"}};
constexpr Demand kMixtureDemands[] = {{"num_experts_per_tok", "2"}};
// input_jitter_noise is of training.
constexpr std::string_view kMixtureHarmless[] = {"output_router_logits", "router_aux_loss_coef",
                                                 "input_jitter_noise",
                                                 "original_max_position_embeddings"};

// The class multiplies cosines and sines by one of two numbers, and takes the short list of factors
// for texts of every length; Microsoft's code takes the long one beyond the original length.
void phimoe(ConfigReader& config) {
  kv_heads(config, 8);
  config.plain_heads();
  attention_biases(config);
  config.know_in_rope("short_mscale");
  config.know_in_rope("long_mscale");
  config.rotary({.theta = 1000000.0});
  config.window();
  const std::string scaling = config.value_of("model.rope_scaling");
  if (scaling.empty()) return;
  const nlohmann::json& old = config.at("rope_scaling");
  const nlohmann::json& table = old.empty() ? config.at("rope_parameters") : old;
  const auto mscale = table.find("short_mscale");
  if (scaling != "longrope" || mscale == table.end() || !mscale->is_number()) {
    config.refuse("rope_parameters", "isn't longrope with short_mscale and long_mscale");
  }
  config.set("model.rope_attention_factor", mscale->get<double>(), "short_mscale");
  config.limit_positions(std::stoll(config.value_of("model.rope_original_length")),
                         "programs read short_factor and long_factor differently");
}

constexpr Family kPhimoe = [] {
  Family form = usual_form(kMixtureModules, kMixtureFixed, kMixtureKeys, kMixtureDemands);
  form.harmless = kMixtureHarmless;
  return form;
}();
constexpr Family kFamilies[] = {
    family_of_form(usual_form(kModules, kRmsNorm, kKeys, kDemands), "phi3", "Phi3ForCausalLM", phi3,
                   write_phi3),
    family_of_form(kPhimoe, "phimoe", "PhimoeForCausalLM", phimoe),
};

}  // namespace

std::span<const Family> phi_families() {
  return kFamilies;
}

}  // namespace sherd::huggingface
