/// Which rank of a pipeline has which blocks, and in what order it computes its part of a step.
/// Every rank and the memory planner compute the same plan before anything runs.
///
/// Without a pipeline, the plan is that of a single rank with one chunk, the whole model. It runs
/// forward and backward of one micro-batch after the other.
#pragma once

#include <memory>
#include <vector>

#include "engine/schedule/schedule.h"
#include "engine/schedule/simulate.h"
#include "engine/train/layout/training_options.h"
#include "sharding/mesh/mesh.h"
#include "sharding/zero/unit.h"

namespace sherd::engine {

/// Consecutive blocks, and the model's ends next to them.
struct Chunk {
  int number = 0;
  int first_block = 0, num_blocks = 0;
  bool embedding = false, head = false;

  int end_block() const { return first_block + num_blocks; }
  bool operator==(const Chunk&) const = default;
};

struct PipelinePlan {
  /// With its messages. Without a pipeline it has one micro-batch, since all are the same.
  std::shared_ptr<const schedule::Schedule> schedule;
  std::vector<Chunk> chunks;  ///< of all ranks, in the order of the model
  int num_micro_batches = 1;

  const schedule::ChunkLayout& layout() const { return schedule->layout; }
  /// Both ends of a tied matrix are needed, on different ranks.
  bool ends_differ() const {
    return layout().rank_of(0) != layout().rank_of(layout().last_chunk());
  }
};

/// Errors   UsageError if the schedule doesn't allow these numbers of ranks, chunks, layers or
///          micro-batches.
PipelinePlan pipeline_plan(const TrainingOptions& options, const sharding::Mesh& mesh);

/// One rank's part of the plan.
struct RankPipeline {
  PipelinePlan plan;
  int place = 0;                ///< the rank's position along the pipeline axis
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

/// Time per chunk, estimated from its multiplications. Only the ratios are meaningful.
schedule::StepTimes estimated_times(const PipelinePlan& plan, const model::ModelShape& shape);

/// The units that a layer uses together (its block and its further parts), and those of the model's
/// two ends.
std::vector<UnitId> layer_units(const model::ModelShape& shape, int layer);
/// The same of the blocks of multi-token prediction, in order.
std::vector<UnitId> prediction_units(const model::ModelShape& shape);
constexpr UnitId embedding_unit() {
  return {UnitRole::kEmbedding};
}
/// All units of a model, in the order of its parameter table.
std::vector<UnitId> all_units(const model::ModelShape& shape);
UnitId head_unit(const model::ModelShape& shape);  ///< the embedding's unit if tied

/// The units of those chunks, in the order of the parameter table.
std::vector<UnitId> units_of(const RankPipeline& pipeline, const model::ModelShape& shape);

/// The lowest block of a chunk that has a backward; end_block() or above: none has.
int first_backward(const Chunk& chunk, const model::ModelShape& shape);
/// The order in which a chunk's forward or backward uses units. A forward that no backward follows
/// includes the head's use. One that a backward follows includes those of multi-token prediction,
/// which begins with the head's norm.
std::vector<UnitId> forward_uses(const Chunk& chunk, const model::ModelShape& shape,
                                 bool evaluates);
std::vector<UnitId> backward_uses(const Chunk& chunk, const model::ModelShape& shape);
/// Whether a chunk's weight gradients use its blocks' parameters too, to recompute the outputs of
/// norms or what experts computed.
bool weight_gradients_use_parameters(const model::ModelShape& shape);
/// The uses in a whole step, or in a whole evaluation pass, on one rank.
std::vector<UnitId> step_uses(const RankPipeline& pipeline, const model::ModelShape& shape);
std::vector<UnitId> pass_uses(const RankPipeline& pipeline, const model::ModelShape& shape,
                              int num_passes);
/// Indices in `units` of the units of `uses` (SHERD_CHECK: all are there).
std::vector<int> places_of(const std::vector<UnitId>& uses,
                           const std::vector<sharding::UnitPlan>& units);

/// Number of evaluation passes in flight together: enough to keep all ranks busy most of the time.
int passes_at_once(const RankPipeline& pipeline);
/// The rank's list of actions for that many passes, with its messages. Not for a whole model, which
/// needs none.
std::vector<schedule::Action> pass_actions(const RankPipeline& pipeline, int num_passes);

}  // namespace sherd::engine
