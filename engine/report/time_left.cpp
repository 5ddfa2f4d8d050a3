#include "engine/report/time_left.h"

namespace sherd::engine {
namespace {

/// Multiples of `interval` in [from, end); none with interval 0.
std::int64_t multiples(std::int64_t from, std::int64_t end, std::int64_t interval) {
  if (interval <= 0 || end <= from) return 0;
  return (end - 1) / interval - (from - 1) / interval;
}

}  // namespace

RunWork RunSchedule::left(std::int64_t done) const {
  if (done > max_steps) return {};
  const std::int64_t from = done > 0 ? done : 1;  // nothing is due before the first step
  RunWork work;
  work.steps = max_steps - done;
  work.passes = multiples(from, max_steps, eval_interval) * passes_per_eval + passes_of_final_eval;
  work.saves = save_interval > 0 ? multiples(from, max_steps, save_interval) + 1 : 0;
  return work;
}

void TimeLeft::Part::add(std::int64_t more, Seconds took) {
  if (more <= 0) return;
  count += more;
  seconds += took;
}

void TimeLeft::took(const RunWork& work, Seconds seconds) {
  steps_.add(work.steps, seconds);
  passes_.add(work.passes, seconds);
  saves_.add(work.saves, seconds);
}

Seconds TimeLeft::of(const RunWork& work) const {
  const Seconds pass = passes_.count > 0
                           ? passes_.mean()
                           : steps_.mean() / (3.0 * static_cast<double>(micro_steps_));
  return steps_.mean() * static_cast<double>(work.steps) + pass * static_cast<double>(work.passes) +
         saves_.mean() * static_cast<double>(work.saves);
}

}  // namespace sherd::engine
