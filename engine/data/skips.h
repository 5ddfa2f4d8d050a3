/// Steps of data that a run skips after it has gone back to a checkpoint: a list, in the order of
/// the steps, which checkpoints keep.
#pragma once

#include <cstdint>
#include <vector>

namespace sherd::data {

struct Skip {
  std::int64_t at_step = 0;    ///< steps done; the next one skips
  std::int64_t num_steps = 0;  ///< of data
  bool operator==(const Skip&) const = default;
};

/// The step of the data that step `step`, counted from 0, trains on.
inline std::int64_t data_step(std::int64_t step, const std::vector<Skip>& skips) {
  std::int64_t skipped = 0;
  for (const Skip& skip : skips) {
    if (skip.at_step <= step) skipped += skip.num_steps;
  }
  return step + skipped;
}

}  // namespace sherd::data
