/// Prepares a run from its recipe: derives everything from it and checks every reason to refuse it,
/// before anything is written.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "engine/data/batcher.h"
#include "engine/data/task.h"
#include "engine/distillation/teacher_file.h"
#include "engine/launch/machine.h"
#include "engine/plan/world_plan.h"
#include "engine/recipe/segments.h"
#include "engine/report/output_folder.h"
#include "engine/saving/checkpointing.h"

namespace sherd::engine {

/// What a segment of the run needs (engine/recipe/segments.h).
struct PreparedSegment {
  TrainingOptions options;  ///< on this machine
  WorldPlan plan;
};

struct PreparedRun {
  ResolvedRecipe resolved;        ///< with the steps of its epochs
  std::vector<Segment> segments;  ///< most runs have one
  std::vector<PreparedSegment> prepared;
  std::vector<std::shared_ptr<const data::Batcher>> batches;
  std::shared_ptr<const std::vector<data::Task>> tasks;  ///< null: none
  std::shared_ptr<const TeacherFile> teacher;            ///< null: none
  std::size_t largest = 0;                               ///< the segment that needs the most memory
  std::optional<std::string> too_large;  ///< why it doesn't fit, if memory.on_exceed is warn

  std::size_t num_segments() const { return segments.size(); }
  /// The segment whose trainer does the step after `steps_done` steps.
  std::size_t segment_after(std::int64_t steps_done) const;
  const data::Dataset& dataset() const { return batches[0]->dataset(); }
};

/// Reads the data and the headers of the initial weights; allocates nothing for training.
/// Errors   UsageError: exceeds this machine's abilities or memory, names that a checkpoint can't
///          contain, initial weights of another model, a prompt that the vocabulary can't express.
///          DataError: the data, the files of weights, the teacher's file.
PreparedRun prepare(const ResolvedRecipe& written, const Machine& machine, checkpoint::Disk& disk);

/// Settings in which the folder of initial weights differs from the recipe's model, one line each
/// after a heading; "" if there are none.
std::string unlike_folder(checkpoint::Disk& disk, const Recipe& recipe);

/// Checkpoint options for the run's ranks, in the folder `output`.
CheckpointOptions checkpoint_options(const PreparedRun& run, const OutputFolder& output);
/// The same for a run that never saves, and so has no folder.
CheckpointOptions loading_options(const PreparedRun& run, checkpoint::Disk& disk);

}  // namespace sherd::engine
