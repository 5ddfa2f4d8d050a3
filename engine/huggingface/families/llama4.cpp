// Llama 4's text part: experts whose input is weighted, next to a shared one, and layers without
// rotation in which queries grow with their position.
#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <string>

#include "engine/huggingface/families/expert_rows.h"
#include "engine/huggingface/families/families.h"

namespace sherd::huggingface {
namespace {

constexpr Module kDense[] = {
    {.ours = "block.{}.mlp.up",
     .theirs = "layers.{}.feed_forward.gate_proj",
     .part = Part::kGate,
     .layers = InLayers::kDense},
    {.ours = "block.{}.mlp.up",
     .theirs = "layers.{}.feed_forward.up_proj",
     .part = Part::kUp,
     .layers = InLayers::kDense},
    {.ours = "block.{}.mlp.down",
     .theirs = "layers.{}.feed_forward.down_proj",
     .layers = InLayers::kDense},
};
constexpr auto kShared = shared_expert("layers.{}.feed_forward.shared_expert.gate_proj",
                                       "layers.{}.feed_forward.shared_expert.up_proj",
                                       "layers.{}.feed_forward.shared_expert.down_proj");
constexpr Module kExperts[] = {
    {"block.{}.moe.router", "layers.{}.feed_forward.router"},
    {"block.{}.moe.experts.up", "layers.{}.feed_forward.experts.gate_up_proj", Part::kTurnedGateUp},
    {"block.{}.moe.experts.down", "layers.{}.feed_forward.experts.down_proj", Part::kTurnedExperts},
};
constexpr std::span<const Module> kModules[] = {kShared, kDense, kAroundExperts, kSecondNorm,
                                                kExperts};

// Of two keys with one name of ours, the later one counts: intermediate_size is of experts.
constexpr ConfigKey kWidths[] = {
    {"num_local_experts", "moe.num_experts", "16"},
    {"num_experts_per_tok", "moe.experts_per_token", "1"},
    {"intermediate_size", "moe.ffn_hidden_size", "8192"},
    {"intermediate_size", "moe.shared_ffn_hidden_size", "8192"},
    {"intermediate_size_mlp", "model.ffn_hidden_size", "16384"},
};
constexpr std::span<const ConfigKey> kKeys[] = {kUsualSizes, kTenthNormAndHead, kWidths};
constexpr Fixed kFixed[] = {{"model.norm", "rmsnorm"},
                            {"moe.score", "sigmoid"},
                            {"moe.normalize_weights", "false"},
                            {"moe.weigh_input", "true"}};
// The class computes no loss of balance and no noise.
constexpr std::string_view kHarmless[] = {"output_router_logits", "router_aux_loss_coef",
                                          "router_jitter_noise"};

// 1 for layers that rotate. The list may be longer than the model has layers.
std::string rotated_layers(ConfigReader& config) {
  const std::int64_t layers = config.layers("num_hidden_layers", 0);
  const std::int64_t interval = config.layers("no_rope_layer_interval", 4, 1);
  const nlohmann::json& list = config.at("no_rope_layers");
  std::string mask;
  if (list.empty()) {  // null, too
    for (std::int64_t i = 0; i < layers; ++i) mask += (i + 1) % interval == 0 ? '0' : '1';
    return mask;
  }
  if (!list.is_array() || std::ssize(list) < layers) {
    config.refuse("no_rope_layers", fmt::format("isn't a list of {} or more layers", layers));
  }
  for (std::int64_t i = 0; i < layers; ++i) {
    const nlohmann::json& rotates = list[static_cast<std::size_t>(i)];
    mask += rotates == 0 || rotates == false ? '0' : '1';
  }
  return mask;
}

// Each interleave_moe_layer_step-th layer, unless moe_layers names them.
void layers_with_experts(ConfigReader& config) {
  const std::int64_t layers = config.layers("num_hidden_layers", 0);
  const std::int64_t step = config.layers("interleave_moe_layer_step", 1, 1);
  const nlohmann::json& list = config.at("moe_layers");
  std::string mask;
  for (std::int64_t i = 0; i < layers; ++i) {
    mask += list.is_null() && (i + 1) % step == 0 ? '1' : '0';
  }
  if (!list.is_null() && !list.is_array()) config.refuse("moe_layers", "isn't a list");
  for (const auto& layer : list) {
    if (!layer.is_number_integer()) config.refuse("moe_layers", "holds what isn't a number");
    const auto number = layer.get<std::int64_t>();
    if (number >= 0 && number < layers) mask[static_cast<std::size_t>(number)] = '1';
  }
  experts_in_layers(config, mask, "moe_layers");
}

// Early folders say 4 for true.
bool grows(ConfigReader& config) {
  const nlohmann::json& tunes = config.at("attn_temperature_tuning");
  return tunes.is_null() || (tunes.is_number() ? tunes != 0 : tunes == true);
}

// Attention in chunks is full attention for texts that fit into one.
void chunks(ConfigReader& config, const std::string& rotated) {
  const std::int64_t layers = config.layers("num_hidden_layers", 0);
  const nlohmann::json& types = config.at("layer_types");
  bool any = types.is_null() && rotated.find('1') != std::string::npos;
  if (!types.is_null() && (!types.is_array() || std::ssize(types) != layers)) {
    config.refuse("layer_types", fmt::format("isn't a list of {} layers", layers));
  }
  for (const auto& type : types) {
    if (type != "chunked_attention" && type != "full_attention") {
      config.refuse("layer_types", "holds another type than chunked_attention and full_attention");
    }
    any |= type == "chunked_attention";
  }
  const auto size = config.value("attention_chunk_size", "8192");
  if (!any) return;
  if (!size) config.refuse("attention_chunk_size", "is null, but layers attend in chunks");
  if (std::stod(*size) < 1.0) config.refuse("attention_chunk_size", "isn't above 0");
  config.limit_positions(static_cast<std::int64_t>(std::stod(*size)),
                         "layers attend in chunks (attention_chunk_size), which isn't supported");
}

void llama4(ConfigReader& config) {
  kv_heads(config, 8);
  config.head_width(128);
  config.rotary({.theta = 500000.0});
  attention_biases(config);
  const std::string rotated = rotated_layers(config);
  turned_layers(config, rotated, "no_rope_layers");
  if (config.truth("use_qk_norm").value_or(true)) {
    config.set("model.qk_norm", "rotated", "use_qk_norm");
  }
  const double growth = config.number("attn_scale").value_or(0.1);
  const double step = config.number("floor_scale").value_or(8192.0);
  if (grows(config) && growth != 0.0 && rotated.find('0') != std::string::npos) {
    config.set("model.query_growth", growth, "attn_scale");
    config.set("model.query_step", step, "floor_scale");
  }
  layers_with_experts(config);
  chunks(config, rotated);
}

void write_llama4(FamilyWriter& config) {
  if (config.number("moe.num_experts") == 0.0 || !config.truth("moe.weigh_input")) return;
  config.kv_heads();
  config.head_width();
  config.rotary();
  config.attention_bias();
  config.turned_layers("no_rope_layers");
  config.set("use_qk_norm", config.text("model.qk_norm") == "rotated");
  const double growth = config.number("model.query_growth");
  config.set("attn_temperature_tuning", growth != 0.0);
  if (growth != 0.0) {
    config.set("attn_scale", growth);
    config.set("floor_scale", config.whole("model.query_step"));
  }
  config.set("attention_chunk_size", config.whole("model.max_seq_length"));
  config.layers_with_experts("moe_layers");
}

constexpr Family kForm = [] {
  Family form = usual_form(kModules, kFixed, kKeys);
  form.harmless = kHarmless;
  form.balances = false;
  form.interleaved_rotary = true;
  return form;
}();
constexpr Family kFamilies[] = {
    family_of_form(kForm, "llama4_text", "Llama4ForCausalLM", llama4, write_llama4),
};

}  // namespace

std::span<const Family> llama4_families() {
  return kFamilies;
}

}  // namespace sherd::huggingface
