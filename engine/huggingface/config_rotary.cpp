// Rotary positions in config.json: two spellings, five scalings.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "checkpoint/format/strict_json.h"
#include "engine/huggingface/config_reader.h"

namespace sherd::huggingface {
namespace {

using nlohmann::json;

// Null where it is missing, or `table` no object.
const json& member(const json& table, std::string_view key) {
  static const json kNull;
  const auto found = table.find(key);
  return found == table.end() ? kNull : *found;
}

std::string type_of(const json& table) {
  for (const char* key : {"rope_type", "type"}) {
    const json& type = member(table, key);
    if (type.is_string()) return type.get<std::string>();
  }
  return "default";
}

}  // namespace

double ConfigReader::number_in(const json& table, std::string_view key, double missing,
                               std::string_view from) {
  const json& value = member(table, key);
  if (value.is_null()) return missing;
  if (!value.is_number()) refuse(from, fmt::format("has a {} that is no number", key));
  return value.get<double>();
}

void ConfigReader::require_known(const json& table, std::string_view from,
                                 std::initializer_list<std::string_view> known) const {
  for (const auto& [key, value] : table.items()) {
    if (value.is_null() || key == "rope_theta" || key == "rope_type" || key == "type" ||
        key == "partial_rotary_factor" ||
        std::find(rope_keys_.begin(), rope_keys_.end(), key) != rope_keys_.end() ||
        std::find(known.begin(), known.end(), key) != known.end()) {
      continue;
    }
    refuse(from, fmt::format("has the key {}, which isn't known with this rope_type",
                             checkpoint::printable(key)));
  }
}

void ConfigReader::rotary(double theta, double fraction) {
  const json& parameters = at("rope_parameters");
  const json& old = at("rope_scaling");
  const bool is_new = parameters.is_object();
  if (!parameters.is_null() && !is_new) refuse("rope_parameters", "isn't an object");
  if (!old.is_null() && !old.is_object()) refuse("rope_scaling", "isn't an object");
  const char* from = is_new ? "rope_parameters" : "rope_scaling";
  const json& table = is_new ? parameters : old.is_object() ? old : parameters;
  theta = number("rope_theta").value_or(theta);
  fraction = number("partial_rotary_factor").value_or(fraction);
  if (table.is_object()) {
    theta = number_in(table, "rope_theta", theta, from);
    fraction = number_in(table, "partial_rotary_factor", fraction, from);
  }
  if (theta == 0.0) refuse("rope_theta", "is missing");
  set("model.positions", "rope");
  set("model.rope_theta", theta, is_new ? from : "rope_theta");
  if (fraction != 1.0) set("model.rope_fraction", fraction, "partial_rotary_factor");
  if (table.is_object()) scaling(table, from);
}

void ConfigReader::rotary_by_layer(double theta, double window_theta) {
  const char* const from = "rope_parameters";
  const json& full = member(at(from), "full_attention");
  const json& windowed = member(at(from), "sliding_attention");
  if (full.is_object()) {
    const double of_full = number_in(full, "rope_theta", theta, from);
    if (of_full == 0.0) refuse(from, "lacks full_attention's rope_theta");
    set("model.positions", "rope");
    set("model.rope_theta", of_full, from);
    scaling(full, from);
    window_theta = number_in(windowed, "rope_theta", window_theta, from);
    if (type_of(windowed) != "default") {
      refuse(from, "scales the windowed layers, which isn't supported");
    }
    for (const json* table : {&full, &windowed}) {
      if (number_in(*table, "partial_rotary_factor", 1.0, from) == 1.0) continue;
      refuse(from, "turns a part of each head, which isn't supported with two tables");
    }
    for (const char* old : {"rope_theta", "rope_scaling", "rope_local_base_freq"}) use(old);
  } else {
    rotary(theta);
  }
  if (window_theta != 0.0) set("model.window_rope_theta", window_theta, "rope_local_base_freq");
  if (!value_of("model.rope_scaling").empty()) set("model.window_rope_scaling", "false");
}

void ConfigReader::scaling(const json& table, std::string_view from) {
  const std::string type = type_of(table);
  if (type == "default") return require_known(table, from, {});
  const double factor = number_in(table, "factor", 1.0, from);
  const double length = number_in(table, "original_max_position_embeddings", 0.0, from);
  if (type == "linear") {
    require_known(table, from, {"factor"});
    set("model.rope_scaling", "linear", from);
    set("model.rope_factor", factor, from);
  } else if (type == "llama3") {
    require_known(
        table, from,
        {"factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings"});
    set("model.rope_scaling", "llama3", from);
    set("model.rope_factor", factor, from);
    set("model.rope_low_freq_factor", number_in(table, "low_freq_factor", 1.0, from), from);
    set("model.rope_high_freq_factor", number_in(table, "high_freq_factor", 4.0, from), from);
    if (length > 0) set("model.rope_original_length", length, from);
  } else if (type == "yarn") {
    set_yarn(table, from);
  } else if (type == "longrope" || type == "su") {
    set_longrope(table, from);
  } else {
    refuse(from,
           fmt::format("has rope_type {}; default, linear, llama3, yarn and longrope are what "
                       "we have",
                       checkpoint::printable(type)));
  }
}

void ConfigReader::set_yarn(const json& table, std::string_view from) {
  require_known(table, from,
                {"factor", "original_max_position_embeddings", "beta_fast", "beta_slow", "truncate",
                 "attention_factor", "mscale", "mscale_all_dim"});
  const double factor = number_in(table, "factor", 1.0, from);
  set("model.rope_scaling", "yarn", from);
  set("model.rope_factor", factor, from);
  set("model.rope_beta_fast", number_in(table, "beta_fast", 32.0, from), from);
  set("model.rope_beta_slow", number_in(table, "beta_slow", 1.0, from), from);
  const double most = number("max_position_embeddings").value_or(0.0);
  const double length = number_in(table, "original_max_position_embeddings", most, from);
  set("model.rope_original_length", length, from);
  if (const json& truncate = member(table, "truncate"); truncate.is_boolean()) {
    set("model.rope_truncate", truncate.dump(), from);
  }
  double attention = number_in(table, "attention_factor", 0.0, from);
  const double mscale = number_in(table, "mscale", 0.0, from);
  const double of_all = number_in(table, "mscale_all_dim", 0.0, from);
  if (attention == 0.0 && mscale != 0.0 && of_all != 0.0) {
    const auto scale = [&](double m) {
      return factor <= 1.0 ? 1.0 : 0.1 * m * std::log(factor) + 1.0;
    };
    attention = scale(mscale) / scale(of_all);
  }
  if (attention != 0.0) set("model.rope_attention_factor", attention, from);
}

void ConfigReader::set_longrope(const json& table, std::string_view from) {
  require_known(table, from,
                {"factor", "original_max_position_embeddings", "short_factor", "long_factor",
                 "attention_factor"});
  set("model.rope_scaling", "longrope", from);
  for (const auto& [theirs, ours] : {std::pair("short_factor", "model.rope_short_factors"),
                                     std::pair("long_factor", "model.rope_long_factors")}) {
    const json& factors = member(table, theirs);
    const bool numbers =
        factors.is_array() &&
        std::all_of(factors.begin(), factors.end(), [](const json& f) { return f.is_number(); });
    if (!numbers) refuse(from, fmt::format("has no list of numbers {}", theirs));
    set(ours, factors.dump(), from);
  }
  const double most = number("max_position_embeddings").value_or(0.0);
  const double of_table = number_in(table, "original_max_position_embeddings", most, from);
  const double length =
      number("original_max_position_embeddings").value_or(longrope_length_.value_or(of_table));
  if (length <= 0.0) refuse("original_max_position_embeddings", "is missing");
  set("model.rope_original_length", length, "original_max_position_embeddings");
  set("model.rope_factor", number_in(table, "factor", std::max(1.0, most / length), from), from);
  const double attention = number_in(table, "attention_factor", 0.0, from);
  if (attention != 0.0) set("model.rope_attention_factor", attention, from);
}

}  // namespace sherd::huggingface
