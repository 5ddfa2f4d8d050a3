/// Estimates the remaining time of a run from its steps, evaluations and saves so far.
#pragma once

#include <cstdint>

#include "engine/report/progress.h"

namespace sherd::engine {

/// Parts of a run.
struct RunWork {
  std::int64_t steps = 0;
  std::int64_t passes = 0;  ///< evaluation passes: forwards over one micro-batch per rank
  std::int64_t saves = 0;
};

/// When evaluations and saves happen in a run of steps 0 .. max_steps - 1.
struct RunSchedule {
  std::int64_t max_steps = 0;
  std::int64_t eval_interval = 0;  ///< 0: only at the end
  std::int64_t save_interval = 0;  ///< 0: never; otherwise at the end too
  std::int64_t passes_per_eval = 0;
  std::int64_t passes_of_final_eval = 0;

  /// The remaining work after `done` steps, including the evaluation and the save due then.
  RunWork left(std::int64_t done) const;
};

class TimeLeft {
 public:
  explicit TimeLeft(std::int64_t micro_steps_per_step) : micro_steps_(micro_steps_per_step) {}

  void took(const RunWork& work, Seconds seconds);
  /// Each part takes its mean so far. Before the first evaluation, a pass counts as a third of a
  /// micro-step, the share of a forward; before the first save, saves count as nothing.
  Seconds of(const RunWork& work) const;

 private:
  struct Part {
    std::int64_t count = 0;
    Seconds seconds{};
    void add(std::int64_t more, Seconds took);
    Seconds mean() const { return count > 0 ? seconds / static_cast<double>(count) : Seconds(0); }
  };
  std::int64_t micro_steps_;
  Part steps_, passes_, saves_;
};

}  // namespace sherd::engine
