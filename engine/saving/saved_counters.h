/// What a checkpoint says of a run besides tensors, as numbers: written by us, read from anybody.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>

#include "checkpoint/store/committed.h"
#include "engine/train/training_step.h"

namespace sherd::engine {

nlohmann::json to_json(const TrainingStep::Counters& counters);

/// Errors   DataError naming the manifest where a counter is missing, isn't a whole number, or can't
///          be a run's: every step done was an update or a skip, a scale is above 0 and below 2^127.
TrainingStep::Counters counters_of(const checkpoint::Checkpoint& checkpoint);

/// The lowest validation loss of a run so far, which early stopping waits to see undercut.
struct BestEvaluation {
  std::optional<double> loss;          ///< none: there was no number yet
  std::int64_t step = 0;               ///< steps done when it was measured
  std::int64_t evaluations_since = 0;  ///< that weren't below it

  /// Evaluations in their order. A loss that is no number is below nothing.
  void add(std::int64_t steps_done, double validation_loss);
  bool operator==(const BestEvaluation&) const = default;
};
nlohmann::json to_json(const BestEvaluation& best);
/// Of a checkpoint that doesn't say, as older programs saved it: its own validation loss, if it has one.
/// Errors   DataError naming the manifest where a value isn't what a run writes.
BestEvaluation best_evaluation_of(const checkpoint::Checkpoint& checkpoint);

/// The good checkpoint in `directory` whose validation loss is lowest; of equal ones the newest. It is
/// one that was kept: checkpoint.keep_best keeps the best of a run.
/// Errors   DataError if none says its loss.
std::string best_checkpoint(checkpoint::Disk& disk, const std::string& directory);

/// Of the model at that step, if it was evaluated.
std::optional<double> validation_loss_of(const checkpoint::Manifest& manifest);

}  // namespace sherd::engine
