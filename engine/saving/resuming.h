/// Where a training begins: its state comes from a checkpoint, from first weights, or from nowhere.
#pragma once

#include "engine/saving/checkpointing.h"
#include "engine/saving/saved_counters.h"

namespace sherd::engine {

struct Start {
  std::int64_t steps_done = 0;
  bool from_checkpoint = false;  ///< that is, the state of a run; not weights alone
  bool evaluated = false;        ///< whether the validation loss at that step is known already
  BestEvaluation best{};         ///< of the evaluations up to that step
  std::string base_digest{};     ///< of the frozen parameters, where there are any
};

/// Another rank can't read what the run begins with, and says so itself. Exit 4.
class RefusedElsewhere : public Error {
 public:
  explicit RefusedElsewhere(const std::string& reason) : Error(4, reason) {}
};

/// Fills model, optimizer and counters from where the options say, once, before the first step. A collective. A damaged
/// checkpoint is reported, and the one before it is taken.
/// Errors   DataError if there are checkpoints and none is good, or on the rank that can't read what the run begins
///          with, RefusedElsewhere on the others; UsageError with `never` and checkpoints there, or if the checkpoint
///          is of another model, batch or data.
Start resume(Checkpointing& shared);

}  // namespace sherd::engine
