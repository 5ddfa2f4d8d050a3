#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "core/human_text.h"
#include "engine/plan/search/search.h"
#include "engine/plan/search/search_text.h"

namespace sherd::engine {
namespace {

// "matmuls 61 %, attention 12 %, pipeline bubble 9 %".
std::string limits_text(const FoundLayout& layout) {
  std::string text;
  int count = 0;
  for (const auto& [name, seconds] : layout.time.parts()) {
    if (++count > 4 || seconds < 0.01 * layout.seconds) break;
    text += fmt::format("{}{} {:.0f} %", text.empty() ? "" : ", ", name,
                        100.0 * seconds / layout.seconds);
  }
  return text;
}

std::string figures(const FoundLayout& layout, const SearchResult& result) {
  std::string text =
      fmt::format("{} a step, {}", seconds_text(layout.seconds), tokens_text(layout.tokens_per_s));
  if (layout.mfu > 0.0) text += fmt::format(", MFU {:.1f} %", 100.0 * layout.mfu);
  text += fmt::format(", {} {}", human_bytes(layout.needed_bytes),
                      result.limit.shared ? "together" : "per rank");
  if (result.tokens > 0.0) {
    text += fmt::format("\n   {:.1f} days for {:.3g} tokens",
                        result.tokens / layout.tokens_per_s / 86'400.0, result.tokens);
  }
  return text + fmt::format("\n   {}\n", limits_text(layout));
}

nlohmann::ordered_json layout_json(const FoundLayout& layout, const SearchResult& result) {
  nlohmann::ordered_json json;
  json["settings"] = nlohmann::ordered_json::object();
  for (const auto& [key, value] : layout.settings) json["settings"][key] = value;
  json["predicted_step_s"] = layout.seconds;
  json["predicted_tokens_per_s"] = layout.tokens_per_s;
  if (layout.mfu > 0.0) json["predicted_mfu"] = layout.mfu;
  json["needed_bytes"] = layout.needed_bytes;
  if (result.tokens > 0.0) {
    json["predicted_days"] = result.tokens / layout.tokens_per_s / 86'400.0;
  }
  for (const auto& [name, seconds] : layout.time.parts()) json["seconds_of"][name] = seconds;
  return json;
}

}  // namespace

std::string seconds_text(double seconds) {
  if (seconds >= 100.0) return fmt::format("{:.0f} s", seconds);
  if (seconds >= 1.0) return fmt::format("{:.2f} s", seconds);
  return fmt::format("{:.1f} ms", seconds * 1e3);
}

std::string tokens_text(double per_s) {
  if (per_s >= 1e6) return fmt::format("{:.2f} M tokens/s", per_s / 1e6);
  return per_s >= 1e4 ? fmt::format("{:.1f}k tokens/s", per_s / 1e3)
                      : fmt::format("{:.0f} tokens/s", per_s);
}

std::string search_text(const SearchResult& result) {
  std::string text = fmt::format("{} ranks, {} on a machine. Rates: {}. Memory: {}, {}.\n",
                                 result.ranks, result.ranks_per_machine, result.rates,
                                 human_bytes(result.limit.bytes), result.limit.origin);
  for (const std::string& rate : result.assumed) text += fmt::format("assumed: {}\n", rate);
  text += fmt::format(
      "{} layouts; {} need more memory by their state alone. Of the fastest others, {} were "
      "planned, {} of them too large; {} broke a rule.\n\n",
      result.layouts, result.too_large, result.planned, result.planned_too_large, result.refused);
  text += fmt::format("the recipe as it is{}\n   {}", result.own_fits ? "" : ": does not fit",
                      figures(result.own, result));
  int number = 0;
  for (const FoundLayout& layout : result.best) {
    const std::string settings = layout.settings.empty() ? "the recipe as it is" : layout.command();
    text += fmt::format("\n{}. {}\n   {}", ++number, settings, figures(layout, result));
  }
  if (result.best.empty()) {
    text += "\nNo layout fits. Use more ranks, or a smaller model or sequence.\n";
  } else if (result.gave_up) {
    text += fmt::format("\nStopped after {} plans.\n", kMostPlans);
  }
  return text;
}

std::string search_json(const SearchResult& result) {
  nlohmann::ordered_json json;
  json["ranks"] = result.ranks;
  json["ranks_per_machine"] = result.ranks_per_machine;
  json["rates"] = result.rates;
  json["assumed"] = result.assumed;
  json["limit_bytes"] = result.limit.bytes;
  json["layouts"] = {{"allowed", result.layouts},
                     {"too_large", result.too_large},
                     {"planned", result.planned},
                     {"planned_too_large", result.planned_too_large},
                     {"refused", result.refused}};
  json["recipe"] = layout_json(result.own, result);
  json["recipe"]["fits"] = result.own_fits;
  json["best"] = nlohmann::ordered_json::array();
  for (const FoundLayout& layout : result.best) json["best"].push_back(layout_json(layout, result));
  return json.dump(2) + "\n";
}

}  // namespace sherd::engine
