#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "engine/plan/ledger/step_ledger.h"

namespace sherd::engine {
namespace {

constexpr std::string_view kClassNames[] = {"matmuls", "attention", "memory", "exchanges"};

std::string_view name_of(LedgerRow::Class of) {
  return kClassNames[static_cast<std::size_t>(of)];
}

std::string row_text(const LedgerRow& row, double step_seconds) {
  const auto amount = [](double value, double unit) {
    return value == 0.0 ? std::string("-") : fmt::format("{:.2f}", value / unit);
  };
  return fmt::format("  {:<37}{:>9}{:>9}{:>9}{:>8.2f}{:>6.1f}\n", row.name, row.launches,
                     amount(static_cast<double>(row.read + row.written), 1e9),
                     amount(row.flops, 1e12), row.seconds * 1e3, 100 * row.seconds / step_seconds);
}

std::string gpu_text(const Recipe& recipe, const GpuRates& rates, bool rows) {
  const StepLedger step = step_ledger(recipe, rates);
  std::string text = fmt::format(
      "\n{}: about {:.1f}k tokens/s, {:.1f} ms a step, MFU {:.1f} % of {:.0f} Tflop/s\n"
      "  {:.1f} % of the step outside matmuls and attention, {:.1f} ms waiting for exchanges\n",
      rates.name, step.tokens_per_s / 1e3, step.seconds * 1e3, 100 * step.mfu,
      rates.stated_flops / 1e12, 100 * step.outside_products(), step.exposed_seconds * 1e3);
  if (rows) {
    text += fmt::format("\n  {:<37}{:>9}{:>9}{:>9}{:>8}{:>6}\n", "", "launches", "GB", "Tflop",
                        "ms", "%");
    for (const LedgerRow& row : step.rows) text += row_text(row, step.seconds);
  }
  text += "\n  If a class of work were a tenth slower or faster, MFU would be\n";
  const double mfu_of_a_token = step.mfu / step.tokens_per_s;
  for (const auto& [of, slower, faster] : sensitivities(recipe, rates)) {
    text += fmt::format("    {:<10}{:.1f} or {:.1f} %\n", of, 100 * slower * mfu_of_a_token,
                        100 * faster * mfu_of_a_token);
  }
  return text;
}

nlohmann::ordered_json gpu_json(const Recipe& recipe, const GpuRates& rates) {
  const StepLedger step = step_ledger(recipe, rates);
  nlohmann::ordered_json json;
  json["gpu"] = rates.name;
  json["estimated_step_s"] = step.seconds;
  json["estimated_exposed_s"] = step.exposed_seconds;
  json["estimated_tokens_per_s"] = step.tokens_per_s;
  json["estimated_mfu"] = step.mfu;
  json["outside_products"] = step.outside_products();
  for (const auto& [of, slower, faster] : sensitivities(recipe, rates)) {
    json["tokens_per_s_if"][of] = {{"slower", slower}, {"faster", faster}};
  }
  for (const LedgerRow& row : step.rows) {
    json["rows"].push_back({{"name", row.name},
                            {"class", name_of(row.of)},
                            {"launches", row.launches},
                            {"read_bytes", row.read},
                            {"written_bytes", row.written},
                            {"flops", row.flops},
                            {"estimated_s", row.seconds}});
  }
  return json;
}

}  // namespace

std::string ledger_text(const Recipe& recipe) {
  return fmt::format(
             "What rank 0 launches in a step on a GPU of its own, and what that would take: an\n"
             "estimate from measured rates of single kernels (docs/measured/gpu_log.md), not a "
             "run.\n") +
         gpu_text(recipe, h100_rates(), true) + gpu_text(recipe, h200_rates(), false);
}

std::string ledger_json(const Recipe& recipe) {
  nlohmann::ordered_json json = nlohmann::ordered_json::array();
  for (const GpuRates& rates : {h100_rates(), h200_rates()}) {
    json.push_back(gpu_json(recipe, rates));
  }
  return json.dump(2) + "\n";
}

}  // namespace sherd::engine
