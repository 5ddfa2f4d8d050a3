/// The numbers that a checkpoint records about a run, apart from tensors. Sherd writes them, but
/// files from other sources are checked when read.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>

#include "checkpoint/store/committed.h"
#include "engine/data/skips.h"
#include "engine/train/training_step.h"

namespace sherd::engine {

/// Text from a manifest as part of a message: a "?" in place of each control character, and not
/// longer than a few lines.
std::string shown(std::string_view text);

nlohmann::json to_json(const TrainingStep::Counters& counters);

/// Errors   DataError naming the manifest if a counter is missing, isn't an integer, or is
///          impossible. Every step done was an update or a skip; a scale is above 0 and below
///          2^127.
TrainingStep::Counters counters_of(const checkpoint::Checkpoint& checkpoint);

/// Data that the run has skipped, in the order of the steps.
/// Errors   DataError naming the manifest if a number isn't one that a run writes.
std::vector<data::Skip> skips_of(const checkpoint::Checkpoint& checkpoint);

/// The lowest validation loss of a run so far, for early stopping.
struct BestEvaluation {
  std::optional<double> loss;          ///< none: no finite loss yet
  std::int64_t step = 0;               ///< steps done when it was measured
  std::int64_t evaluations_since = 0;  ///< that weren't below it

  /// Adds evaluations in order. A loss that isn't finite never counts as lower.
  void add(std::int64_t steps_done, double validation_loss);
  bool operator==(const BestEvaluation&) const = default;
};
nlohmann::json to_json(const BestEvaluation& best);
/// For checkpoints of older programs, which don't record it: the checkpoint's own validation loss,
/// if it has one.
/// Errors   DataError naming the manifest if a value isn't one that a run writes.
BestEvaluation best_evaluation_of(const checkpoint::Checkpoint& checkpoint);

/// What a validation loss was measured on. Losses of other sets and lengths can't be compared.
struct ValidatedOn {
  std::string best_by;  ///< the recipe's key
  std::int64_t seq_length = 0;
  std::uint64_t data = 0;  ///< fingerprint of the text; 0: not known, as of older programs
  /// A text that isn't known counts as the same.
  bool operator==(const ValidatedOn& other) const {
    return best_by == other.best_by && seq_length == other.seq_length &&
           (data == other.data || data == 0 || other.data == 0);
  }
};
nlohmann::json to_json(const ValidatedOn& on);
/// Nothing if the checkpoint doesn't say, as those of older programs.
std::optional<ValidatedOn> validated_on(const checkpoint::Manifest& manifest);

/// The good checkpoint in `directory` whose validation loss is lowest; of equal ones the newest.
/// Only losses count that were measured as the newest was. It is a retained checkpoint:
/// checkpoint.keep_best keeps the best of a run.
/// Errors   DataError if none records its loss.
std::string best_checkpoint(checkpoint::Disk& disk, const std::string& directory);

/// The checkpoint's validation loss, if the model was evaluated at that step.
std::optional<double> validation_loss_of(const checkpoint::Manifest& manifest);
/// The same text for checkpoints whose losses can be compared. One that doesn't say what its loss
/// was measured on is like those measured on `own`.
std::string measured_as(const checkpoint::Manifest& manifest, const ValidatedOn& own);
/// The checkpoint's validation loss, but nothing if it was measured on something else.
std::optional<double> validation_loss_of(const checkpoint::Manifest& manifest,
                                         const ValidatedOn& on);

}  // namespace sherd::engine
