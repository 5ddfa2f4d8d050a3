#include "engine/huggingface/family_writer.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <nlohmann/json.hpp>

#include "engine/huggingface/rotary_spelling.h"

namespace sherd::huggingface {
namespace {

using nlohmann::ordered_json;

// Keys of the recipe that are whole numbers; all other numbers are written with a point, since
// transformers 5 takes no 1 for a float.
constexpr auto kWhole = std::to_array<std::string_view>({
    "model.num_layers",
    "model.hidden_size",
    "model.num_attention_heads",
    "model.num_kv_heads",
    "model.ffn_hidden_size",
    "model.vocab_size",
    "model.max_seq_length",
    "model.head_width",
    "model.window",
    "model.kv_lora_rank",
    "model.qk_nope_head_dim",
    "model.qk_rope_head_dim",
    "model.v_head_dim",
    "moe.num_experts",
    "moe.experts_per_token",
    "moe.ffn_hidden_size",
    "moe.shared_ffn_hidden_size",
    "moe.num_groups",
    "moe.kept_groups",
});

ordered_json as_json(std::string_view ours, const std::string& text) {
  ordered_json parsed = ordered_json::parse(text, nullptr, false);
  if (parsed.is_boolean()) return parsed;
  if (!parsed.is_number()) return text;
  const bool is_whole = std::ranges::find(kWhole, ours) != kWhole.end();
  return is_whole ? parsed : ordered_json(parsed.get<double>());
}

}  // namespace

std::string FamilyWriter::text(std::string_view ours) const {
  const auto found = values_.find(std::string(ours));
  std::string value = found == values_.end() ? "" : found->second;
  std::erase(value, '"');
  return value;
}

double FamilyWriter::number(std::string_view ours) const {
  const ordered_json parsed = ordered_json::parse(text(ours), nullptr, false);
  return parsed.is_number() ? parsed.get<double>() : 0.0;
}

std::int64_t FamilyWriter::whole(std::string_view ours) const {
  return static_cast<std::int64_t>(number(ours));
}

bool FamilyWriter::truth(std::string_view ours) const {
  return text(ours) == "true";
}

void FamilyWriter::set(std::string_view theirs, std::int64_t value) {
  config_[std::string(theirs)] = value;
}

void FamilyWriter::set(std::string_view theirs, double value) {
  config_[std::string(theirs)] = value;
}

void FamilyWriter::set(std::string_view theirs, bool value) {
  config_[std::string(theirs)] = value;
}

void FamilyWriter::set_null(std::string_view theirs) {
  config_[std::string(theirs)] = nullptr;
}

void FamilyWriter::set_text(std::string_view theirs, std::string_view value) {
  config_[std::string(theirs)] = value;
}

void FamilyWriter::set_layers(std::string_view theirs, std::string_view value) {
  ordered_json layers = ordered_json::array();
  for (std::int64_t layer = 0; layer < whole("model.num_layers"); ++layer) layers.push_back(value);
  config_[std::string(theirs)] = std::move(layers);
}

void FamilyWriter::write() {
  for (const auto keys : family_.keys) {
    for (const ConfigKey& key : keys) {
      config_[std::string(key.theirs)] = as_json(key.ours, text(key.ours));
    }
  }
  for (const ConfigWord& word : family_.words) {
    const std::string key(word.theirs);
    if (config_.contains(key) || text(word.ours) != word.value) continue;
    config_[key] = as_json(word.ours, std::string(word.word));
  }
  // Without these keys, classes use token ids of their own, such as 128,004.
  for (const char* token : {"bos_token_id", "eos_token_id", "pad_token_id"}) set_null(token);
  family_.write(*this);
}

bool FamilyWriter::heads_divide_width() const {
  return whole("model.hidden_size") % whole("model.num_attention_heads") == 0;
}

void FamilyWriter::kv_heads() {
  set("num_key_value_heads", whole("model.num_kv_heads"));
}

void FamilyWriter::head_width() {
  set("head_dim", whole("model.head_width"));
}

void FamilyWriter::attention_bias() {
  set("attention_bias", truth("model.qkv_bias") && truth("model.output_bias"));
}

void FamilyWriter::biases() {
  attention_bias();
  set("mlp_bias", truth("model.mlp_bias"));
}

void FamilyWriter::add_longrope(ordered_json& table) const {
  table["original_max_position_embeddings"] = whole("model.rope_original_length");
  table["short_factor"] = ordered_json::parse(text("model.rope_short_factors"));
  table["long_factor"] = ordered_json::parse(text("model.rope_long_factors"));
}

// The factor on cosines and sines follows from two lengths in transformers 4, which takes no other.
bool FamilyWriter::has_longrope_of_lengths() const {
  const double length = number("model.rope_original_length");
  return number("model.rope_attention_factor") == 0.0 &&
         number("model.rope_factor") == std::max(1.0, number("model.max_seq_length") / length);
}

ordered_json FamilyWriter::rotary_table() const {
  const std::string named = text("model.rope_scaling");
  const std::string scaling = named.empty() ? "none" : named;
  ordered_json table = {{"rope_type", scaling == "none" ? "default" : scaling},
                        {"rope_theta", number("model.rope_theta")}};
  if (scaling == "none") return table;
  if (scaling == "longrope") {
    add_longrope(table);
  } else {
    table["factor"] = number("model.rope_factor");
  }
  if (scaling == "llama3") {
    table["low_freq_factor"] = number("model.rope_low_freq_factor");
    table["high_freq_factor"] = number("model.rope_high_freq_factor");
  }
  if (scaling == "yarn") {
    table["beta_fast"] = number("model.rope_beta_fast");
    table["beta_slow"] = number("model.rope_beta_slow");
    table["truncate"] = truth("model.rope_truncate");
  }
  if (scaling == "llama3" || scaling == "yarn") {
    table["original_max_position_embeddings"] = whole("model.rope_original_length");
  }
  if (const double factor = number("model.rope_attention_factor"); factor != 0.0) {
    table["attention_factor"] = factor;
  }
  return table;
}

void FamilyWriter::set_rotary(bool with_part) {
  if (text("model.rope_scaling") == "longrope" && !has_longrope_of_lengths()) return;
  ordered_json table = rotary_table();
  if (with_part) table["partial_rotary_factor"] = number("model.rope_fraction");
  config_["rope_parameters"] = std::move(table);
  add_both_spellings(config_, family_);
}

void FamilyWriter::rotary() {
  set_rotary(false);
}

void FamilyWriter::rotary_of_part() {
  set_rotary(true);
}

void FamilyWriter::rotary_by_layer() {
  const double theta = number("model.rope_theta"), windowed = number("model.window_rope_theta");
  config_["rope_parameters"] = {
      {"full_attention", rotary_table()},
      {"sliding_attention",
       {{"rope_type", "default"}, {"rope_theta", windowed == 0.0 ? theta : windowed}}}};
  add_both_spellings(config_, family_);
}

bool FamilyWriter::is_one_at(std::string_view ours, std::int64_t layer) const {
  const std::string pattern = text(ours);
  return !pattern.empty() && pattern[static_cast<std::size_t>(layer) % pattern.size()] == '1';
}

bool FamilyWriter::is_windowed(std::int64_t layer) const {
  return number("model.window") > 0.0 && is_one_at("model.window_layers", layer);
}

bool FamilyWriter::is_turned(std::int64_t layer) const {
  return is_one_at("model.rope_layers", layer);
}

bool FamilyWriter::has_windows() const {
  for (std::int64_t layer = 0; layer < whole("model.num_layers"); ++layer) {
    if (is_windowed(layer)) return true;
  }
  return false;
}

void FamilyWriter::turned_layers(std::string_view theirs) {
  ordered_json layers = ordered_json::array();
  for (std::int64_t layer = 0; layer < whole("model.num_layers"); ++layer) {
    layers.push_back(is_turned(layer) ? 1 : 0);
  }
  config_[std::string(theirs)] = std::move(layers);
}

bool FamilyWriter::has_experts(std::int64_t layer) const {
  return number("moe.num_experts") > 0.0 && is_one_at("moe.layers", layer);
}

bool FamilyWriter::has_experts_everywhere() const {
  for (std::int64_t layer = 0; layer < whole("model.num_layers"); ++layer) {
    if (!has_experts(layer)) return false;
  }
  return true;
}

void FamilyWriter::dense_layers(std::string_view theirs) {
  set_numbers(theirs, false);
}

void FamilyWriter::layers_with_experts(std::string_view theirs) {
  set_numbers(theirs, true);
}

void FamilyWriter::set_numbers(std::string_view theirs, bool with_experts) {
  ordered_json layers = ordered_json::array();
  for (std::int64_t layer = 0; layer < whole("model.num_layers"); ++layer) {
    if (has_experts(layer) == with_experts) layers.push_back(layer);
  }
  config_[std::string(theirs)] = std::move(layers);
}

void FamilyWriter::window() {
  if (has_windows()) return set("sliding_window", whole("model.window"));
  set_null("sliding_window");
}

void FamilyWriter::window_layers() {
  ordered_json types = ordered_json::array();
  for (std::int64_t layer = 0; layer < whole("model.num_layers"); ++layer) {
    types.push_back(is_windowed(layer) ? "sliding_attention" : "full_attention");
  }
  config_["layer_types"] = std::move(types);
  constexpr std::int64_t kUnused = 4096;  // no layer has it, but the classes want a number
  set("sliding_window", has_windows() ? whole("model.window") : kUnused);
}

}  // namespace sherd::huggingface
