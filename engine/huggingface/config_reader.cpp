#include "engine/huggingface/config_reader.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <nlohmann/json.hpp>

#include "checkpoint/format/strict_json.h"
#include "core/error.h"

namespace sherd::huggingface {
namespace {

using checkpoint::printable;
using nlohmann::json;

const json kNull;
constexpr std::string_view kWindow = "sliding_window";

// Settings of every model that don't affect what it computes.
constexpr auto kHarmless = std::to_array<std::string_view>({
    "model_type",
    "architectures",
    "torch_dtype",
    "dtype",
    "transformers_version",
    "use_cache",
    "bos_token_id",
    "eos_token_id",
    "pad_token_id",
    "sep_token_id",
    "initializer_range",
    "_name_or_path",
    "_attn_implementation",
    "attn_implementation",
    "pretraining_tp",
    "quantization_config",
    "return_dict",
    "output_hidden_states",
    "output_attentions",
    "chunk_size_feed_forward",
    "is_decoder",
    "id2label",
    "label2id",
    "problem_type",
    "task_specific_params",
    "auto_map",
    "unsloth_version",
    "unsloth_fixed",
    "transformers.js_config",
});
// Training settings, which the recipe sets.
constexpr auto kRecipes = std::to_array<std::string_view>({
    "attention_dropout",
    "hidden_dropout",
    "resid_pdrop",
    "embd_pdrop",
    "attn_pdrop",
    "residual_dropout",
    "embedding_dropout",
    "classifier_dropout",
    "summary_first_dropout",
});
// Of every family: with another value it isn't a decoder-only model, or not this one.
constexpr auto kDemands = std::to_array<Demand>({
    {"is_encoder_decoder", "false"},
    {"add_cross_attention", "false"},
    {"cross_attention_hidden_size", "null"},
    {"use_bidirectional_attention", "false"},
    {"is_causal", "true"},
    {"per_layer_config", "null"},
});

}  // namespace

const json& ConfigReader::at(std::string_view key) {
  use(key);
  const auto found = config_.find(key);
  return found == config_.end() ? kNull : *found;
}

bool ConfigReader::has(std::string_view key) {
  return !at(key).is_null();
}

bool ConfigReader::is_null(std::string_view key) {
  return at(key).is_null() && config_.contains(key);
}

std::string ConfigReader::scalar(std::string_view key, const json& value) const {
  if (value.is_number() || value.is_boolean()) return value.dump();
  if (!value.is_string()) refuse(key, fmt::format("is {}; expected a value", value.type_name()));
  return printable(value.get_ref<const std::string&>());
}

std::optional<std::string> ConfigReader::text(std::string_view key) {
  const json& value = at(key);
  if (value.is_null()) return std::nullopt;
  return scalar(key, value);
}

std::optional<std::string> ConfigReader::value(std::string_view key,
                                               std::optional<std::string> missing) {
  const json& found = at(key);
  if (found.is_null()) return config_.contains(key) ? std::nullopt : missing;
  if (found.is_string()) refuse(key, "is a text; expected a number, true or false");
  return scalar(key, found);
}

std::optional<double> ConfigReader::number(std::string_view key) {
  const json& value = at(key);
  if (value.is_null()) return std::nullopt;
  if (!value.is_number()) refuse(key, fmt::format("is {}; expected a number", value.type_name()));
  return value.get<double>();
}

std::optional<bool> ConfigReader::truth(std::string_view key) {
  const json& value = at(key);
  if (value.is_null()) return std::nullopt;
  if (!value.is_boolean()) {
    refuse(key, fmt::format("is {}; expected true or false", value.type_name()));
  }
  return value.get<bool>();
}

std::int64_t ConfigReader::layers(std::string_view key, std::int64_t missing, std::int64_t least) {
  const double count = number(key).value_or(static_cast<double>(missing));
  if (count >= static_cast<double>(least) && count <= static_cast<double>(kMostLayers) &&
      count == std::floor(count)) {
    return static_cast<std::int64_t>(count);
  }
  refuse(key, fmt::format("isn't a whole number from {} to {}", least, kMostLayers));
}

void ConfigReader::set(std::string_view key, std::string value, std::string_view from) {
  for (ConfigValue& known : result_.values) {
    if (known.key != key) continue;
    known = {std::string(key), std::move(value), std::string(from)};
    return;
  }
  result_.values.push_back({std::string(key), std::move(value), std::string(from)});
}

void ConfigReader::set(std::string_view key, double value, std::string_view from) {
  set(key, fmt::format("{}", value), from);
}

std::string ConfigReader::value_of(std::string_view key) const {
  return huggingface::value_of(result_, key);
}

void ConfigReader::head_width(std::int64_t missing) {
  const double width = number("head_dim").value_or(static_cast<double>(missing));
  if (width == 0.0) return;
  const double hidden = number("hidden_size").value_or(0);
  const double heads = number("num_attention_heads").value_or(0);
  if (heads > 0 && width * heads == hidden) return;
  set("model.head_width", width, "head_dim");
}

void ConfigReader::plain_heads() {
  const std::optional<double> width = number("head_dim");
  const double hidden = number("hidden_size").value_or(0);
  const double heads = number("num_attention_heads").value_or(0);
  if (!width || *width * heads == hidden) return;
  refuse("head_dim", fmt::format("is {}, but heads of models of type {} are hidden_size / "
                                 "num_attention_heads wide",
                                 *width, result_.family->model_type));
}

std::optional<std::string> ConfigReader::layer_types() {
  const json& types = at("layer_types");
  if (types.is_null()) return std::nullopt;
  if (!types.is_array()) refuse("layer_types", "isn't a list");
  std::string mask;
  for (const json& type : types) {
    const std::string name = type.is_string() ? type.get<std::string>() : type.dump();
    // "attention" is what older files call it.
    if (name != "full_attention" && name != "sliding_attention" && name != "attention") {
      refuse("layer_types", fmt::format("holds \"{}\"; full_attention and sliding_attention are "
                                        "supported",
                                        printable(name)));
    }
    mask += name == "sliding_attention" ? '1' : '0';
  }
  if (std::ssize(mask) != layers("num_hidden_layers", 0)) {
    refuse("layer_types", fmt::format("has {} layers, but num_hidden_layers differs", mask.size()));
  }
  return mask;
}

void ConfigReader::windows(const std::string& mask, std::optional<std::string> missing) {
  use(kWindow);
  if (mask.find('1') == std::string::npos) return;  // no layer has a window
  window(std::move(missing));
  if (value_of("model.window").empty()) {
    refuse(kWindow, "is null or missing, but layers are windowed");
  }
  if (mask.find('0') == std::string::npos) return;
  set("model.window_layers", fmt::format("\"{}\"", mask), "layer_types");
}

void ConfigReader::window(std::optional<std::string> missing) {
  const auto window = value(kWindow, std::move(missing));
  if (!window) return;
  if (*window == "0") refuse(kWindow, "is 0; a query sees at least one key, its own");
  set("model.window", *window, kWindow);
}

void ConfigReader::prediction_layers() {
  for (const char* key : kPredictionLayers) {
    if (has(key)) result_.prediction_layers = layers(key, 0);
  }
}

void ConfigReader::limit_positions(std::int64_t most, std::string why) {
  result_.most_positions = most;
  result_.beyond = std::move(why);
  if (number("max_position_embeddings").value_or(0.0) > static_cast<double>(most)) {
    set("model.max_seq_length", fmt::format("{}", most), "rope_parameters");
  }
}

void ConfigReader::refuse(std::string_view key, const std::string& why) const {
  throw DataError("{}: {} {}", result_.path, key, why);
}

void ConfigReader::read_tables(const Family& family) {
  for (const auto& harmless : kHarmless) use(harmless);
  for (const auto& harmless : family.harmless) use(harmless);
  for (const Fixed& fixed : family.fixed) set(fixed.ours, std::string(fixed.value));
  for (const std::span<const ConfigKey> keys : family.keys) {
    for (const ConfigKey& key : keys) {
      const std::optional<std::string> found = value(key.theirs);
      if (!found && key.missing.empty()) refuse(key.theirs, "is missing");
      set(key.ours, found.value_or(std::string(key.missing)), key.theirs);
    }
  }
  std::set<std::string_view> known_words;
  for (const ConfigWord& word : family.words) {
    const std::optional<std::string> found = text(word.theirs);
    if (!found || *found == word.word) {  // missing: the first that is listed
      if (known_words.insert(word.theirs).second) {
        set(word.ours, std::string(word.value), word.theirs);
      }
    }
  }
  for (const ConfigWord& word : family.words) {
    if (known_words.contains(word.theirs)) continue;
    refuse(word.theirs, fmt::format("is {}, which isn't supported for this family",
                                    text(word.theirs).value_or("missing")));
  }
  for (const std::span<const Demand> demands :
       {std::span<const Demand>(kDemands), family.demands}) {
    for (const Demand& demand : demands) {
      if (at(demand.theirs).empty()) continue;  // missing, null, or without anything in it
      if (at(demand.theirs).is_structured()) refuse(demand.theirs, "isn't supported");
      const std::optional<std::string> found = text(demand.theirs);
      if (!found || *found == demand.value) continue;
      refuse(demand.theirs, fmt::format("is {}; only {} is supported", *found, demand.value));
    }
  }
  if (is_null("is_causal")) refuse("is_causal", "is null, which is false");
  if (family.more) family.more(*this);
}

std::vector<std::string> ConfigReader::unused() const {
  std::vector<std::string> keys;
  for (const auto& [key, value] : config_.items()) {
    if (value.is_null() || used_.contains(key)) continue;
    const bool is_recipes = std::find(kRecipes.begin(), kRecipes.end(), key) != kRecipes.end();
    if (is_recipes && value.is_number() && value.get<double>() == 0.0) continue;
    keys.push_back(printable(key));
  }
  return keys;
}

}  // namespace sherd::huggingface
