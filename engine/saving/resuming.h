/// Where a training begins: from a checkpoint, from initial weights, or from scratch.
#pragma once

#include "engine/saving/checkpointing.h"
#include "engine/saving/saved_counters.h"

namespace sherd::engine {

struct Start {
  std::int64_t steps_done = 0;
  bool from_checkpoint = false;     ///< from the state of a run, not weights only
  bool evaluated = false;           ///< whether the validation loss at that step is known
  BestEvaluation best{};            ///< of the evaluations up to that step
  std::vector<data::Skip> skips{};  ///< of the data
  std::string base_digest{};        ///< of the frozen parameters, if there are any
};

/// Another rank can't read the run's initial state, and reports that itself. Exit 4.
class RefusedElsewhere : public Error {
 public:
  explicit RefusedElsewhere(const std::string& reason) : Error(4, reason) {}
};

/// Fills model, optimizer and counters as the options say, once, before the first step. A
/// collective. Damaged checkpoints are reported, and the previous one is tried.
/// Errors   DataError if there are checkpoints and all are damaged, or on the rank that can't read
///          the initial state; RefusedElsewhere on the other ranks. UsageError with `never` if
///          there are checkpoints, or if the checkpoint has another model, batch or data.
Start resume(Checkpointing& shared);

}  // namespace sherd::engine
