// Llama and what follows its form: pre-norm, RMS norms, rotary positions, a feed-forward with a
// gate of SiLU.
#include "engine/huggingface/families/families.h"

#include <fmt/format.h>

#include <algorithm>
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
constexpr auto kTenthNormAndHead = std::to_array<ConfigKey>({
    {"rms_norm_eps", "model.norm_eps", "1e-05"},
    {"tie_word_embeddings", "model.tie_embeddings", "false"},
});
constexpr auto kErnieNormAndHead = std::to_array<ConfigKey>({
    {"rms_norm_eps", "model.norm_eps", "1e-05"},
    {"tie_word_embeddings", "model.tie_embeddings", "true"},
    {"use_bias", "model.bias", "false"},
});
constexpr auto kHeliumNormAndHead = std::to_array<ConfigKey>({
    {"rms_norm_eps", "model.norm_eps", "1e-08"},
    {"tie_word_embeddings", "model.tie_embeddings", "false"},
});
constexpr std::span<const ConfigKey> kKeys[] = {kUsualSizes, kNormAndHead};
constexpr std::span<const ConfigKey> kTenthKeys[] = {kUsualSizes, kTenthNormAndHead};
constexpr std::span<const ConfigKey> kErnieKeys[] = {kUsualSizes, kErnieNormAndHead};
constexpr std::span<const ConfigKey> kHeliumKeys[] = {kUsualSizes, kHeliumNormAndHead};
constexpr std::span<const ConfigKey> kTiedKeys[] = {kUsualSizes, kNormAndTiedHead};
constexpr auto kLlamaHarmless = std::to_array<std::string_view>({"rope_interleaved"});

void llama(ConfigReader& config) {
  kv_heads(config);
  config.head_width();
  config.rotary();
  attention_and_mlp_biases(config);
}

void internlm3(ConfigReader& config) {
  kv_heads(config, 2);
  config.head_width(128);
  config.rotary();
  attention_and_mlp_biases(config);
  if (config.truth("attention_bias").value_or(false) != config.truth("mlp_bias").value_or(false)) {
    config.refuse("qkv_bias", "isn't bias, and models of this type have both or none");
  }
}

void seed_oss(ConfigReader& config) {
  kv_heads(config, 8);
  config.head_width(128);
  config.rotary();
  const auto bias = [&](const char* theirs, const char* ours, bool missing) {
    if (config.truth(theirs).value_or(missing)) config.set(ours, "true", theirs);
  };
  bias("attention_bias", "model.qkv_bias", true);
  bias("attention_out_bias", "model.output_bias", false);
  bias("mlp_bias", "model.mlp_bias", false);
}

void ernie(ConfigReader& config) {
  kv_heads(config, 2);
  config.head_width(128);
  config.rotary({.theta = 500000.0});
}

void helium(ConfigReader& config) {
  kv_heads(config, 20);
  config.head_width(128);
  config.rotary({.theta = 100000.0});
  if (config.truth("attention_bias").value_or(false)) {
    config.set("model.qkv_bias", "true", "attention_bias");
  }
  if (config.truth("mlp_bias").value_or(false)) config.set("model.mlp_bias", "true", "mlp_bias");
}

// One window for all layers: the class doesn't look at layer_types, as Ministral's does.
void mistral(ConfigReader& config) {
  kv_heads(config, 8);
  config.head_width();
  config.rotary();
  config.window(kUsualWindow);
}

void ministral(ConfigReader& config) {
  kv_heads(config, 8);
  if (!config.has("head_dim")) config.refuse("head_dim", "is missing");
  config.head_width();
  config.rotary();
  if (const auto mask = config.layer_types()) {
    config.windows(*mask, kUsualWindow);
  } else {
    config.window(kUsualWindow);
  }
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
  kv_heads(config, 8);
  config.head_width(128);
  config.rotary({.theta = 1000000.0});
  config.window();
  if (beta->get<double>() == 0.0) return;
  const double original = config.number("original_max_position_embeddings")
                              .value_or(static_cast<double>(length->get<std::int64_t>()));
  config.limit_positions(static_cast<std::int64_t>(original), "queries grow with their position");
}

}  // namespace

void qwen_windows(ConfigReader& config) {
  const bool windows = config.truth("use_sliding_window").value_or(false);
  const auto mask = config.layer_types();
  config.use("sliding_window");
  config.use("max_window_layers");
  if (!windows) {
    if (!mask || mask->find('1') == std::string::npos) return;
    config.refuse("layer_types", "has sliding_attention, but use_sliding_window isn't true");
  }
  if (mask) return config.windows(*mask, kUsualWindow);
  if (config.is_null("sliding_window")) return;
  // Layers from max_window_layers on have the window.
  const std::int64_t layers = config.layers("num_hidden_layers", 0);
  const std::int64_t full = config.layers("max_window_layers", 28);
  std::string by_number(static_cast<std::size_t>(std::min(full, layers)), '0');
  by_number.resize(static_cast<std::size_t>(layers), '1');
  config.windows(by_number, kUsualWindow);
}

namespace {

void qwen(ConfigReader& config) {
  kv_heads(config, 32);
  config.rotary();
  qwen_windows(config);
}

void qwen2(ConfigReader& config) {
  config.head_width();
  config.set("model.qkv_bias", "true");
  qwen(config);
}

void qwen3(ConfigReader& config) {
  config.head_width(128);
  config.set("model.qk_norm", "head");
  attention_biases(config);
  qwen(config);
}

// 1 for layers that turn queries and keys.
std::string smollm3_turned(ConfigReader& config) {
  const nlohmann::json& layers = config.at("no_rope_layers");
  const std::int64_t interval = config.layers("no_rope_layer_interval", 4, 1);
  std::string mask;
  if (layers.is_array()) {
    for (const auto& layer : layers) {
      const bool turns = layer == 1 || layer == true;
      if (!turns && layer != 0 && layer != false) {
        config.refuse("no_rope_layers", "has entries that are neither 0 nor 1");
      }
      mask += turns ? '1' : '0';
    }
    if (std::ssize(mask) != config.layers("num_hidden_layers", 0)) {
      config.refuse("no_rope_layers",
                    fmt::format("has {} layers, but num_hidden_layers differs", mask.size()));
    }
  } else {
    mask = all_but_every(interval);
  }
  turned_layers(config, mask, "no_rope_layers");
  return mask;
}

// Layers without rotary positions have windows, if any layers have.
void smollm3(ConfigReader& config) {
  kv_heads(config, 4);
  config.head_width();
  config.rotary({.theta = 2000000.0});
  attention_and_mlp_biases(config);
  const std::string turned = smollm3_turned(config);
  const bool on = config.truth("use_sliding_window").value_or(false);
  const bool windows = on && config.has("sliding_window");
  config.use("sliding_window");
  if (const auto mask = config.layer_types()) return config.windows(*mask);
  if (!windows) return;
  std::string mask;
  for (const char turns : turned) mask += turns == '1' ? '0' : '1';
  config.windows(mask);
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

// What Phi-3's class can't say: biases, and windows or positions in some layers only.
bool is_beyond_phi3(const FamilyWriter& config) {
  if (config.truth("model.qkv_bias") || config.truth("model.mlp_bias")) return true;
  for (std::int64_t layer = 0; layer < config.whole("model.num_layers"); ++layer) {
    if (!config.is_turned(layer) || config.is_windowed(layer) != config.is_windowed(0)) return true;
  }
  return config.truth("model.output_bias");
}

void write_smollm3(FamilyWriter& config) {
  if (has_longrope(config) && !is_beyond_phi3(config)) return;
  write_usual(config);
  config.turned_layers("no_rope_layers");
  config.set("use_sliding_window", config.has_windows());
  if (config.has_windows()) config.window_layers();
}

void write_ministral(FamilyWriter& config) {
  if (has_longrope(config)) return;
  config.kv_heads();
  config.head_width();
  config.rotary();
  config.window_layers();
}

void write_seed_oss(FamilyWriter& config) {
  if (has_longrope(config)) return;
  config.kv_heads();
  config.head_width();
  config.rotary();
  config.set("attention_bias", config.truth("model.qkv_bias"));
  config.set("attention_out_bias", config.truth("model.output_bias"));
  config.set("mlp_bias", config.truth("model.mlp_bias"));
}

void write_ernie(FamilyWriter& config) {
  if (has_longrope(config)) return;
  config.kv_heads();
  config.head_width();
  config.rotary();
}

void write_helium(FamilyWriter& config) {
  if (has_longrope(config)) return;
  config.kv_heads();
  config.head_width();
  config.rotary();
  config.set("attention_bias", config.truth("model.qkv_bias"));
  config.set("mlp_bias", config.truth("model.mlp_bias"));
}

constexpr Family kForm = usual_form(kModules, kRmsNorm, kKeys);
constexpr Family kTiedForm = usual_form(kModules, kRmsNorm, kTiedKeys);
constexpr Family kLlamaForm = [] {
  Family form = kForm;
  form.harmless = kLlamaHarmless;
  return form;
}();

constexpr Family kTenthForm = usual_form(kModules, kRmsNorm, kTenthKeys);
constexpr Alias kInternAliases[] = {{"qkv_bias", "attention_bias"}, {"bias", "mlp_bias"}};
constexpr Family kInternForm = [] {
  Family form = kTenthForm;
  form.aliases = kInternAliases;
  return form;
}();
constexpr Family interleaved(std::span<const std::span<const ConfigKey>> keys) {
  Family form = usual_form(kModules, kRmsNorm, keys);
  form.interleaved_rotary = true;
  return form;
}

constexpr Family kFamilies[] = {
    family_of_form(kLlamaForm, "llama", "LlamaForCausalLM", llama, write_llama),
    family_of_form(kForm, "mistral", "MistralForCausalLM", mistral, write_mistral),
    // Llama and Mistral mean the same up to the length that it can be trained with.
    family_of_form(kTenthForm, "ministral3", "Ministral3ForCausalLM", ministral3),
    family_of_form(kForm, "qwen2", "Qwen2ForCausalLM", qwen2, write_qwen),
    family_of_form(kForm, "qwen3", "Qwen3ForCausalLM", qwen3, write_qwen3),
    family_of_form(kTiedForm, "smollm3", "SmolLM3ForCausalLM", smollm3, write_smollm3),
    family_of_form(kForm, "ministral", "MinistralForCausalLM", ministral, write_ministral),
    family_of_form(kForm, "seed_oss", "SeedOssForCausalLM", seed_oss, write_seed_oss),
    // Its class is Llama's, so models are written under Llama's name.
    family_of_form(kInternForm, "internlm3", "LlamaForCausalLM", internlm3),
    family_of_form(interleaved(kErnieKeys), "ernie4_5", "Ernie4_5ForCausalLM", ernie, write_ernie),
    family_of_form(interleaved(kHeliumKeys), "helium", "HeliumForCausalLM", helium, write_helium),
};

}  // namespace

std::span<const Family> llama_families() {
  return kFamilies;
}

}  // namespace sherd::huggingface
