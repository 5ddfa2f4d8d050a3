/// Whether one rank was the slowest in most steps, which suggests that its machine is slow.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "engine/report/metrics.h"

namespace sherd::engine {

class SlowestCounts {
 public:
  void add(const StepMetrics::Slowest& step);
  /// "rank 3 was the slowest in 41 of 50 steps, at the median 1.80 times the median rank". "" if no
  /// rank was in two thirds of the steps, or if it took less than 1.1 times as long: of equal ranks
  /// one is always the slowest.
  std::string text() const;

 private:
  std::int64_t num_steps_ = 0;
  std::map<int, std::vector<double>>
      ratios_;  ///< by rank: of the steps in which it was the slowest
};

}  // namespace sherd::engine
