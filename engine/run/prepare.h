/// A recipe becomes a run, once: everything that follows from it, and every reason to refuse it, before anything is
/// written.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "engine/data/batcher.h"
#include "engine/launch/machine.h"
#include "engine/plan/world_plan.h"
#include "engine/recipe/recipe.h"
#include "engine/report/output_folder.h"
#include "engine/saving/checkpointing.h"

namespace sherd::engine {

struct PreparedRun {
  ResolvedRecipe resolved;  ///< with the steps that its epochs take
  TrainingOptions options;  ///< on this machine
  WorldPlan plan;
  std::optional<std::string>
      too_large;  ///< that the plan doesn't fit, where memory.on_exceed is warn
  std::shared_ptr<const data::Dataset> dataset;
  std::shared_ptr<const data::Batcher> batches;
};

/// Reads the data, and headers of what the run begins with; allocates nothing for training.
/// Errors   UsageError: what this machine can't do or hold, what no checkpoint could name, first weights that aren't the
///          model's, a prompt that the vocabulary can't spell. DataError: the data, the weights' files.
PreparedRun prepare(const ResolvedRecipe& written, const Machine& machine, checkpoint::Disk& disk);

/// Settings of the folder whose weights are taken that the recipe's model doesn't have, a line each below one that says
/// so; "" if there are none.
std::string unlike_folder(checkpoint::Disk& disk, const Recipe& recipe);

/// What the run's ranks need to know of its checkpoints, in the folder `output`.
CheckpointOptions checkpoint_options(const PreparedRun& run, const OutputFolder& output);

}  // namespace sherd::engine
