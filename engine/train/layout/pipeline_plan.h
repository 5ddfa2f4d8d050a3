/// Which rank of a pipeline has which blocks, and in what order it computes its part of a step: what
/// every rank, and whoever plans memory, works out alike before anything runs.
///
/// A world without a pipeline is one of a single rank that has one chunk, the whole model: forward and
/// backward of one micro-batch after the other.
#pragma once

#include <memory>
#include <vector>

#include "engine/schedule/schedule.h"
#include "engine/schedule/simulate.h"
#include "engine/train/layout/training_options.h"
#include "sharding/mesh/mesh.h"
#include "sharding/zero/unit.h"

namespace sherd::engine {

/// Consecutive blocks, and the ends that are next to them.
struct Chunk {
  int number = 0;
  int first_block = 0, num_blocks = 0;
  bool embedding = false, head = false;

  int end_block() const { return first_block + num_blocks; }
};

struct PipelinePlan {
  /// With its messages. Without a pipeline, of one micro-batch: all are alike.
  std::shared_ptr<const schedule::Schedule> schedule;
  std::vector<Chunk> chunks;  ///< of all ranks, in the order of the model
  int num_micro_batches = 1;

  const schedule::ChunkLayout& layout() const { return schedule->layout; }
  /// Both ends of a tied matrix are needed, on different ranks.
  bool ends_differ() const {
    return layout().rank_of(0) != layout().rank_of(layout().last_chunk());
  }
};

/// Errors   UsageError where the schedule can't take the numbers of ranks, chunks, layers or micro-batches,
///          or has a violation (engine/schedule/validate.h).
PipelinePlan pipeline_plan(const TrainingOptions& options, const sharding::Mesh& mesh);

/// What one rank has of it.
struct RankPipeline {
  PipelinePlan plan;
  int place = 0;                ///< the rank's along the pipeline axis
  std::vector<Chunk> chunks{};  ///< its own, in the order of the model

  int degree() const { return plan.layout().num_ranks; }
  bool whole() const { return degree() == 1; }
  bool has_embedding() const { return chunks.front().embedding; }
  bool has_head() const { return chunks.back().head; }
  const std::vector<schedule::Action>& actions() const {
    return plan.schedule->ranks[static_cast<std::size_t>(place)];
  }
  const Chunk& chunk(int number) const { return plan.chunks[static_cast<std::size_t>(number)]; }
  /// Whether the chunk's input, or its output, goes to another rank.
  bool receives(const Chunk& chunk) const {
    return chunk.number > 0 && plan.layout().crosses_after(chunk.number - 1);
  }
  bool sends(const Chunk& chunk) const { return plan.layout().crosses_after(chunk.number); }
};
RankPipeline rank_pipeline(const TrainingOptions& options, const sharding::Mesh& mesh, int rank);

/// What each chunk takes, from the multiplications in it. Only their ratios mean something.
schedule::StepTimes estimated_times(const PipelinePlan& plan, const model::ModelShape& shape);

/// The units that a layer, and the two ends of a model, use together: a layer's block and its further parts.
std::vector<UnitId> layer_units(const model::ModelShape& shape, int layer);
constexpr UnitId embedding_unit() {
  return {UnitRole::kEmbedding};
}
/// Those of a whole model, in the order of its parameter table.
std::vector<UnitId> all_units(const model::ModelShape& shape);
UnitId head_unit(const model::ModelShape& shape);  ///< the embedding's where they are tied

/// The units of those chunks, in the order of the parameter table.
std::vector<UnitId> units_of(const RankPipeline& pipeline, const model::ModelShape& shape);

/// In which order a chunk's forward, or its backward, uses units. A forward without a backward after it has
/// the head's use, too.
std::vector<UnitId> forward_uses(const Chunk& chunk, const model::ModelShape& shape,
                                 bool evaluates);
std::vector<UnitId> backward_uses(const Chunk& chunk, const model::ModelShape& shape);
/// Whether a chunk's weight gradients use its blocks, too: to compute outputs of norms again.
bool weight_gradients_use_parameters(const model::ModelShape& shape);
/// In the whole of a step, or of an evaluation's pass, on one rank.
std::vector<UnitId> step_uses(const RankPipeline& pipeline, const model::ModelShape& shape);
std::vector<UnitId> pass_uses(const RankPipeline& pipeline, const model::ModelShape& shape,
                              int num_passes);
/// Where the units of `uses` are in `units` (SHERD_CHECK: all are there).
std::vector<int> places_of(const std::vector<UnitId>& uses,
                           const std::vector<sharding::UnitPlan>& units);

/// How many passes of an evaluation are under way together: enough to keep all ranks busy for most of the time.
int passes_at_once(const RankPipeline& pipeline);
/// The rank's list of so many passes, with its messages. Not of a whole model, which needs none.
std::vector<schedule::Action> pass_actions(const RankPipeline& pipeline, int num_passes);

}  // namespace sherd::engine
