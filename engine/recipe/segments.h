/// Stages of the data may change the shape of a step: its sequence length, batch size or
/// micro-batch size. A segment is a row of stages with one shape. A run trains its segments one
/// after another, each with a trainer and a memory plan of its own, and goes from one to the next
/// through a checkpoint. So a segment begins as a resumed run does, with the same bits.
///
/// In a segment's recipe, `training` has the segment's shape, `data.stages` has the segment's stages
/// in steps, without shapes, and `optimizer.lr` (with `adamw_lr`) follows the batch size as
/// lr_scheduler.batch_size_scaling says. All else is the run's.
#pragma once

#include <string>
#include <vector>

#include "engine/recipe/recipe.h"

namespace sherd::engine {

/// Steps [first_step, end_step) of a run, counted from 0.
struct StageSpan {
  std::int64_t first_step = 0;
  std::int64_t end_step = 0;  ///< of the last stage: max_steps; 0: unknown
  std::int64_t tokens_per_step = 0;
};
/// One for each stage; without stages, one for the run.
std::vector<StageSpan> spans_of(const Recipe& recipe);

/// Steps before `end_step`, or the end of the run if that is earlier, that hold at least `tokens`
/// tokens.
std::int64_t last_steps_with(const Recipe& recipe, std::int64_t tokens, std::int64_t end_step);

/// The longest sequence of any stage, and of `training`.
std::int64_t longest_sequence(const Recipe& recipe);

/// Whether a stage has a shape of its own.
bool has_shapes(const Recipe& recipe);
/// Errors   UsageError if one has: `who` divides batches of one shape alone
void require_one_shape(const Recipe& recipe, std::string_view who);

struct Segment {
  ResolvedRecipe recipe;
  std::int64_t first_step = 0;
  std::int64_t end_step = 0;    ///< 0: unknown
  std::size_t first_stage = 0;  ///< index in data.stages
  /// Its sequences are longer or shorter than the previous segment's, so texts are cut again.
  bool cuts_anew = false;

  /// "steps 201 to 400: 8 sequences of 512 tokens, lr x 1.41".
  std::string text(const Recipe& run) const;
};

/// At least one. Those that begin at max_steps or later are left out. If no stage has a shape, the
/// one segment is the recipe itself.
/// Errors   RecipeErrors if a stage's shape is impossible; each begins with its data.stages[i]
std::vector<Segment> segments_of(const ResolvedRecipe& recipe);

}  // namespace sherd::engine
