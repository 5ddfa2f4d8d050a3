// Llama and what follows its form: pre-norm, RMS norms, rotary positions, a gated feed-forward.
#include "engine/huggingface/families/families.h"

#include <fmt/format.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "engine/huggingface/families/common.h"

namespace sherd::huggingface {
namespace {

constexpr std::span<const Module> kModules[] = {kUsualModules, kSecondNorm};

constexpr auto kNormAndHead = std::to_array<ConfigKey>({
    {"rms_norm_eps", "model.norm_eps", "1e-06"},
    {"tie_word_embeddings", "model.tie_embeddings", "false"},
});
// Files that transformers 4 wrote leave out what is true for all classes and this one.
constexpr auto kNormAndTiedHead = std::to_array<ConfigKey>({
    {"rms_norm_eps", "model.norm_eps", "1e-06"},
    {"tie_word_embeddings", "model.tie_embeddings", "true"},
});
constexpr auto kMinistralNormAndHead = std::to_array<ConfigKey>({
    {"rms_norm_eps", "model.norm_eps", "1e-05"},
    {"tie_word_embeddings", "model.tie_embeddings", "false"},
});
constexpr std::span<const ConfigKey> kKeys[] = {kUsualSizes, kNormAndHead};
constexpr std::span<const ConfigKey> kMinistralKeys[] = {kUsualSizes, kMinistralNormAndHead};
constexpr std::span<const ConfigKey> kTiedKeys[] = {kUsualSizes, kNormAndTiedHead};
constexpr auto kLlamaHarmless = std::to_array<std::string_view>({"rope_interleaved"});

void llama(ConfigReader& config) {
  kv_heads(config);
  config.head_width();
  config.rotary(10000.0);
  attention_and_mlp_biases(config);
}

void mistral(ConfigReader& config) {
  kv_heads(config);
  config.head_width();
  config.rotary(10000.0);
  if (!config.window_layers(kUsualWindow)) config.window(kUsualWindow);
}

// Queries are multiplied by 1 + beta log(1 + floor(position / original length)): by 1 as long as
// the text isn't longer than that.
void ministral3(ConfigReader& config) {
  constexpr const char* kTable = "rope_parameters";
  const nlohmann::json& table = config.at(kTable);
  if (!table.is_object()) config.refuse(kTable, "is missing");
  const auto beta = table.find("llama_4_scaling_beta");
  const auto length = table.find("original_max_position_embeddings");
  if (beta == table.end() || !beta->is_number() || length == table.end() ||
      !length->is_number_unsigned()) {
    config.refuse(kTable, "lacks llama_4_scaling_beta or original_max_position_embeddings");
  }
  config.know_in_rope("llama_4_scaling_beta");
  config.know_in_rope("max_position_embeddings");
  kv_heads(config);
  config.head_width(128);
  config.rotary(1000000.0);
  if (!config.window_layers()) config.window();
  if (beta->get<double>() != 0.0) config.limit_positions(length->get<std::int64_t>());
}

void qwen(ConfigReader& config) {
  kv_heads(config);
  config.rotary(10000.0);
  const bool windows = config.truth("use_sliding_window").value_or(false);
  config.use("sliding_window");
  config.use("max_window_layers");
  if (!windows) {
    config.use("layer_types");
    return;
  }
  if (config.window_layers(kUsualWindow)) return;
  // Layers from max_window_layers on have the window.
  const std::int64_t layers = config.layers("num_hidden_layers", 0);
  const std::int64_t full = config.layers("max_window_layers", 28);
  if (full >= layers) return;
  config.window(kUsualWindow);
  std::string mask(static_cast<std::size_t>(full), '0');
  mask.resize(static_cast<std::size_t>(layers), '1');
  if (full > 0) config.set("model.window_layers", fmt::format("\"{}\"", mask), "max_window_layers");
}

void qwen2(ConfigReader& config) {
  config.head_width();
  config.set("model.qkv_bias", "true");
  qwen(config);
}

void qwen3(ConfigReader& config) {
  config.head_width(128);
  config.set("model.qk_norm", "head");
  attention_and_mlp_biases(config);
  qwen(config);
}

void smollm3(ConfigReader& config) {
  kv_heads(config);
  config.head_width();
  config.rotary(2000000.0);
  attention_and_mlp_biases(config);
  const nlohmann::json& layers = config.at("no_rope_layers");
  const std::int64_t interval = config.layers("no_rope_layer_interval", 4, 1);
  std::string mask;
  if (layers.is_array() && !layers.empty()) {
    for (const auto& layer : layers) mask += layer == 0 ? '0' : '1';
    if (std::ssize(mask) != config.layers("num_hidden_layers", 0)) {
      config.refuse(
          "no_rope_layers",
          fmt::format("has {} layers, another number than num_hidden_layers", mask.size()));
    }
  } else {
    mask = std::string(static_cast<std::size_t>(interval) - 1, '1') + '0';
  }
  if (mask.find('0') != std::string::npos) {
    config.set("model.rope_layers", fmt::format("\"{}\"", mask), "no_rope_layers");
  }
  if (config.truth("use_sliding_window").value_or(false)) {
    config.window_layers();
  } else {
    config.use("layer_types");
    config.use("sliding_window");
  }
}

void granite(ConfigReader& config) {
  kv_heads(config);
  config.head_width();
  config.rotary(10000.0);
  attention_and_mlp_biases(config);
  const auto multiply = [&](const char* theirs, const char* ours, double neutral) {
    const double value = config.number(theirs).value_or(neutral);
    if (value != neutral) config.set(ours, value, theirs);
  };
  multiply("attention_multiplier", "model.attention_scale", 0.0);
  if (config.value_of("model.attention_scale").empty()) {
    config.set("model.attention_scale", 1.0, "attention_multiplier");  // the class's default
  }
  multiply("embedding_multiplier", "model.embedding_scale", 1.0);
  multiply("residual_multiplier", "model.residual_scale", 1.0);
  const double divisor = config.number("logits_scaling").value_or(1.0);
  if (divisor <= 0.0) config.refuse("logits_scaling", "isn't above 0");
  if (divisor != 1.0) config.set("model.logits_scale", 1.0 / divisor, "logits_scaling");
}

void write_usual(FamilyWriter& config) {
  config.kv_heads();
  config.head_width();
  config.rotary();
  config.biases();
}

// Classes of all families compute longrope, but Phi-3 is where programs expect it.
bool has_longrope(const FamilyWriter& config) {
  return config.text("model.rope_scaling") == "longrope";
}

void write_llama(FamilyWriter& config) {
  if (config.heads_divide_width() && !has_longrope(config)) write_usual(config);
}

void write_mistral(FamilyWriter& config) {
  if (has_longrope(config)) return;
  config.kv_heads();
  config.head_width();
  config.rotary();
  config.window();
}

void write_qwen(FamilyWriter& config) {
  config.kv_heads();
  config.head_width();
  config.rotary();
  config.set("use_sliding_window", config.has_windows());
  if (config.has_windows()) config.window_layers();
}

void write_qwen3(FamilyWriter& config) {
  write_qwen(config);
  config.set("attention_bias", config.truth("model.qkv_bias") && config.truth("model.output_bias"));
}

void write_smollm3(FamilyWriter& config) {
  write_usual(config);
  config.turned_layers("no_rope_layers");
  config.set("use_sliding_window", config.has_windows());
  if (config.has_windows()) config.window_layers();
}

void write_granite(FamilyWriter& config) {
  write_usual(config);
  const double scale = config.number("model.attention_scale");
  config.set("attention_multiplier",
             scale == 0.0 ? 1.0 / std::sqrt(config.number("model.head_width")) : scale);
  config.set("embedding_multiplier", config.number("model.embedding_scale"));
  config.set("residual_multiplier", config.number("model.residual_scale"));
  config.set("logits_scaling", 1.0 / config.number("model.logits_scale"));
}

constexpr Family kForm = usual_form(kModules, kRmsNorm, kKeys);
constexpr Family kTiedForm = usual_form(kModules, kRmsNorm, kTiedKeys);
constexpr Family kLlamaForm = [] {
  Family form = kForm;
  form.harmless = kLlamaHarmless;
  return form;
}();

constexpr Family kMinistralForm = usual_form(kModules, kRmsNorm, kMinistralKeys);

constexpr Family kFamilies[] = {
    family_of_form(kLlamaForm, "llama", "LlamaForCausalLM", llama, write_llama),
    family_of_form(kForm, "mistral", "MistralForCausalLM", mistral, write_mistral),
    family_of_form(kMinistralForm, "ministral3", "Ministral3ForCausalLM", ministral3),
    family_of_form(kForm, "qwen2", "Qwen2ForCausalLM", qwen2, write_qwen),
    family_of_form(kForm, "qwen3", "Qwen3ForCausalLM", qwen3, write_qwen3),
    family_of_form(kTiedForm, "smollm3", "SmolLM3ForCausalLM", smollm3, write_smollm3),
    family_of_form(kForm, "granite", "GraniteForCausalLM", granite, write_granite),
};

}  // namespace

std::span<const Family> llama_families() {
  return kFamilies;
}

}  // namespace sherd::huggingface
