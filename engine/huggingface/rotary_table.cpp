#include "engine/huggingface/rotary_table.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "checkpoint/format/strict_json.h"
#include "engine/huggingface/config_reader.h"

namespace sherd::huggingface {
namespace {

using checkpoint::printable;
using nlohmann::json;

constexpr auto kKnown = std::to_array<std::string_view>(
    {"rope_type", "type", "rope_theta", "partial_rotary_factor", "factor",
     "original_max_position_embeddings", "low_freq_factor", "high_freq_factor", "beta_fast",
     "beta_slow", "truncate", "attention_factor", "mscale", "mscale_all_dim", "short_factor",
     "long_factor"});

}  // namespace

RotaryTable::RotaryTable(ConfigReader& config, const json& table, std::string name)
    : config_(config), table_(table), name_(std::move(name)), type_("default") {
  for (const char* key : {"rope_type", "type"}) {
    if (!has(key)) continue;
    if (!value(key).is_string()) refuse(fmt::format("has a {} that is no text", key));
    type_ = value(key).get<std::string>();
    break;
  }
  read_.insert("type");
}

void RotaryTable::refuse(const std::string& why) const {
  config_.refuse(name_, why);
}

const json& RotaryTable::value(const char* key) {
  static const json kNull;
  read_.insert(key);
  const auto found = table_.find(key);
  return found == table_.end() ? kNull : *found;
}

bool RotaryTable::has(const char* key) {
  read_.insert(key);
  return table_.contains(key);
}

std::optional<double> RotaryTable::number(const char* key) {
  const json& found = value(key);
  if (found.is_null()) return std::nullopt;
  if (!found.is_number()) refuse(fmt::format("has a {} that is no number", key));
  return found.get<double>();
}

double RotaryTable::needed(const char* key) {
  const std::optional<double> found = number(key);
  if (!found) refuse(fmt::format("{} {}", has(key) ? "has null as" : "lacks", key));
  return *found;
}

std::optional<bool> RotaryTable::truth(const char* key) {
  const json& found = value(key);
  if (found.is_null()) return std::nullopt;
  if (!found.is_boolean()) refuse(fmt::format("has a {} that is neither true nor false", key));
  return found.get<bool>();
}

std::string RotaryTable::list(const char* key) {
  const json& found = value(key);
  const bool numbers =
      found.is_array() &&
      std::all_of(found.begin(), found.end(), [](const json& one) { return one.is_number(); });
  if (!numbers) refuse(fmt::format("has no list of numbers {}", key));
  return found.dump();
}

void RotaryTable::require_known(const std::vector<std::string>& more) const {
  for (const auto& [key, found] : table_.items()) {
    if (found.is_null() || std::ranges::find(kKnown, key) != kKnown.end() ||
        std::ranges::find(more, key) != more.end()) {
      continue;
    }
    refuse(fmt::format("has the key {}, which isn't known", printable(key)));
  }
}

std::vector<std::string> RotaryTable::idle(const std::vector<std::string>& more) const {
  std::vector<std::string> keys;
  for (const auto& [key, found] : table_.items()) {
    if (found.is_null() || read_.contains(key) || std::ranges::find(more, key) != more.end())
      continue;
    keys.push_back(key);
  }
  return keys;
}

}  // namespace sherd::huggingface
