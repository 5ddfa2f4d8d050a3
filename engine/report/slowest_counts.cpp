#include "engine/report/slowest_counts.h"

#include <fmt/format.h>

#include <algorithm>

namespace sherd::engine {

void SlowestCounts::add(const StepMetrics::Slowest& step) {
  ++num_steps_;
  ratios_[step.rank].push_back(step.median_ms > 0.0 ? step.own_ms / step.median_ms : 1.0);
}

std::string SlowestCounts::text() const {
  constexpr double kWorthSaying = 1.1;
  for (const auto& [rank, of_rank] : ratios_) {
    if (3 * std::ssize(of_rank) < 2 * num_steps_) continue;
    std::vector<double> ratios = of_rank;
    const auto middle = ratios.begin() + std::ssize(ratios) / 2;
    std::ranges::nth_element(ratios, middle);
    if (*middle < kWorthSaying) return "";
    return fmt::format(
        "rank {} was the slowest in {} of {} steps, at the median {:.2f} times the median rank",
        rank, of_rank.size(), num_steps_, *middle);
  }
  return "";
}

}  // namespace sherd::engine
