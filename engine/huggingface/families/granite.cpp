// Granite: Llama's form with four multipliers. Version 4's dense models are of a class that has
// layers without attention and experts, too, which aren't read.
#include <cmath>
#include <nlohmann/json.hpp>

#include "engine/huggingface/families/common.h"
#include "engine/huggingface/families/families.h"

namespace sherd::huggingface {
namespace {

constexpr std::span<const Module> kModules[] = {kUsualModules, kSecondNorm};
constexpr Module kSharedFeedForward[] = {
    {"block.{}.mlp.up", "layers.{}.shared_mlp.input_linear"},
    {"block.{}.mlp.down", "layers.{}.shared_mlp.output_linear"},
};
// The first row for a module is the one that is taken.
constexpr std::span<const Module> kModules4[] = {kSharedFeedForward, kSecondNorm, kUsualModules};

constexpr ConfigKey kNormAndHead[] = {
    {"rms_norm_eps", "model.norm_eps", "1e-06"},
    {"tie_word_embeddings", "model.tie_embeddings", "false"},
};
constexpr ConfigKey kSizes4[] = {
    {"num_hidden_layers", "model.num_layers"},
    {"hidden_size", "model.hidden_size"},
    {"num_attention_heads", "model.num_attention_heads"},
    {"shared_intermediate_size", "model.ffn_hidden_size"},
    {"vocab_size", "model.vocab_size"},
    {"max_position_embeddings", "model.max_seq_length"},
};
constexpr std::span<const ConfigKey> kKeys[] = {kUsualSizes, kNormAndHead};
constexpr std::span<const ConfigKey> kKeys4[] = {kSizes4, kNormAndHead};
constexpr Alias kAliases4[] = {{"layers_block_type", "layer_types"}};
// Settings of experts and of layers without attention, which the model lacks.
constexpr std::string_view kHarmless4[] = {
    "intermediate_size", "num_experts_per_tok", "output_router_logits",   "router_aux_loss_coef",
    "mamba_n_heads",     "mamba_n_groups",      "mamba_d_state",          "mamba_d_head",
    "mamba_d_conv",      "mamba_expand",        "mamba_chunk_size",       "mamba_conv_bias",
    "mamba_proj_bias",   "time_step_limit",     "normalization_function", "init_method"};

}  // namespace

void granite_multipliers(ConfigReader& config) {
  const auto multiply = [&](const char* theirs, const char* ours, double neutral) {
    const double value = config.number(theirs).value_or(neutral);
    if (value != neutral) config.set(ours, value, theirs);
  };
  config.set("model.attention_scale", config.number("attention_multiplier").value_or(1.0),
             "attention_multiplier");
  multiply("embedding_multiplier", "model.embedding_scale", 1.0);
  multiply("residual_multiplier", "model.residual_scale", 1.0);
  const double divisor = config.number("logits_scaling").value_or(1.0);
  if (divisor <= 0.0) config.refuse("logits_scaling", "isn't above 0");
  if (divisor != 1.0) config.set("model.logits_scale", 1.0 / divisor, "logits_scaling");
}

namespace {

void granite(ConfigReader& config) {
  kv_heads(config);
  config.head_width();
  config.rotary();
  attention_and_mlp_biases(config);
  granite_multipliers(config);
}

void granite4(ConfigReader& config) {
  if (config.number("num_local_experts").value_or(8.0) != 0.0) {
    config.refuse("num_local_experts", "isn't 0; experts aren't supported");
  }
  if (!config.layer_types()) {
    config.refuse("layer_types", "is missing, and layers without attention aren't supported");
  }
  kv_heads(config);
  config.head_width();
  config.rotary();
  attention_biases(config);
  granite_multipliers(config);
  if (config.text("position_embedding_type").value_or("") == "rope") return;
  config.set("model.rope_layers", "\"0\"", "position_embedding_type");
}

}  // namespace

void write_granite_multipliers(FamilyWriter& config) {
  const double scale = config.number("model.attention_scale");
  config.set("attention_multiplier",
             scale == 0.0 ? 1.0 / std::sqrt(config.number("model.head_width")) : scale);
  config.set("embedding_multiplier", config.number("model.embedding_scale"));
  config.set("residual_multiplier", config.number("model.residual_scale"));
  config.set("logits_scaling", 1.0 / config.number("model.logits_scale"));
}

namespace {

void write_granite(FamilyWriter& config) {
  config.kv_heads();
  config.head_width();
  config.rotary();
  config.biases();
  write_granite_multipliers(config);
}

// The settings of layers without attention must fit the model's sizes, although it has no such
// layers.
void write_granite4(FamilyWriter& config) {
  config.kv_heads();
  config.head_width();
  config.rotary();
  config.attention_bias();
  write_granite_multipliers(config);
  config.set("num_local_experts", 0);
  config.set("mamba_n_heads", 1);
  config.set_layers("layer_types", "attention");
  config.set_text("position_embedding_type", config.is_turned(0) ? "rope" : "nope");
}

constexpr Family kForm = usual_form(kModules, kRmsNorm, kKeys);
constexpr Family kForm4 = [] {
  Family form = usual_form(kModules4, kRmsNorm, kKeys4);
  form.aliases = kAliases4;
  form.harmless = kHarmless4;
  return form;
}();
constexpr Family kFamilies[] = {
    family_of_form(kForm, "granite", "GraniteForCausalLM", granite, write_granite),
    family_of_form(kForm4, "granitemoehybrid", "GraniteMoeHybridForCausalLM", granite4,
                   write_granite4),
};

}  // namespace

std::span<const Family> granite_families() {
  return kFamilies;
}

}  // namespace sherd::huggingface
