/// Steps of data that a run skips after it has gone back to a checkpoint: a list, in the order of
/// the steps, which checkpoints keep.
///
/// If stages change the shape of a step, a skip counts in the steps of one segment (engine/recipe/
/// segments.h). A rewind that passes the border of segments has a skip in each of them.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

namespace sherd::data {

struct Skip {
  std::int64_t at_step = 0;    ///< steps done; the next one skips
  std::int64_t num_steps = 0;  ///< of data
  bool is_rest = false;        ///< of a rewind that has a skip in an earlier segment, too
  bool operator==(const Skip&) const = default;
};

/// The step of the data that step `step`, counted from 0, trains on, in the segment that begins at
/// `first_step`.
inline std::int64_t data_step(std::int64_t step, std::int64_t first_step,
                              const std::vector<Skip>& skips) {
  std::int64_t skipped = 0;
  for (const Skip& skip : skips) {
    if (skip.at_step >= first_step && skip.at_step <= step) skipped += skip.num_steps;
  }
  return step + skipped;
}

/// A sum over the data that a run has used in its first `num_steps` steps. `sum_of(n)`: the sum over
/// the first n steps of data.
template <class SumOf>
std::int64_t sum_without(std::int64_t first_step, std::int64_t num_steps,
                         const std::vector<Skip>& skips, const SumOf& sum_of) {
  std::int64_t sum = sum_of(first_step), begin = first_step;
  const auto add = [&](std::int64_t end) {  // data between two skips are consecutive
    if (begin < end) {
      sum += sum_of(data_step(end - 1, first_step, skips) + 1) -
             sum_of(data_step(begin, first_step, skips));
    }
    begin = end;
  };
  for (const Skip& skip : skips) {
    if (skip.at_step >= begin && skip.at_step < num_steps) add(skip.at_step);
  }
  add(num_steps);
  return sum;
}

inline std::int64_t num_rewinds(const std::vector<Skip>& skips) {
  return std::ranges::count(skips, false, &Skip::is_rest);
}

}  // namespace sherd::data
