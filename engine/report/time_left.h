/// How long a run still takes, from what its parts took so far: steps, evaluations, saves.
#pragma once

#include <cstdint>

#include "engine/report/progress.h"

namespace sherd::engine {

/// Parts of a run.
struct RunWork {
  std::int64_t steps = 0;
  std::int64_t passes = 0;  ///< of evaluations: forwards over one micro-batch per rank
  std::int64_t saves = 0;
};

/// When what happens in a run that is cut into steps 0 .. max_steps - 1.
struct RunSchedule {
  std::int64_t max_steps = 0;
  std::int64_t eval_interval = 0;  ///< 0: only at the end
  std::int64_t save_interval = 0;  ///< 0: never; otherwise at the end too
  std::int64_t passes_per_eval = 0;
  std::int64_t passes_of_final_eval = 0;

  /// What is still to be done after `done` steps, the evaluation and the save that are due then
  /// included.
  RunWork left(std::int64_t done) const;
};

class TimeLeft {
 public:
  explicit TimeLeft(std::int64_t micro_steps_per_step) : micro_steps_(micro_steps_per_step) {}

  void took(const RunWork& work, Seconds seconds);
  /// Each part at its mean so far. An evaluation that none came before counts a pass as a third of a
  /// micro-step, a forward's share; the first save counts as nothing.
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
