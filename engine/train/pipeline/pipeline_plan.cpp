#include "engine/train/pipeline/pipeline_plan.h"
#include "engine/schedule/generate.h"

#include <algorithm>
#include <set>

#include "core/error.h"
#include "engine/schedule/balance.h"
#include "engine/schedule/forwards.h"
#include "engine/schedule/passes.h"
#include "engine/schedule/validate.h"

namespace sherd::engine {
namespace {

// A nanosecond for each multiplication of a token: only their ratios matter.
schedule::Duration time_of(double multiplications) {
  return schedule::Duration(static_cast<std::int64_t>(multiplications));
}

// A forward and a backward of everything that multiplies. The embedding only looks up.
schedule::LayerTimes layer_times(const model::ModelShape& shape) {
  const auto width = static_cast<double>(shape.width);
  schedule::LayerTimes times;
  const auto positions = static_cast<double>(shape.seq_length);
  for (std::int64_t i = 0; i < shape.num_layers; ++i) {
    const auto window = static_cast<double>(shape.layer(i).window);
    const bool windowed = window > 0.0 && window < positions;
    const double keys = windowed ? window - window * window / (2.0 * positions) : positions / 2.0;
    times.layers.push_back(
        time_of(width * static_cast<double>(shape.qkv_width() + shape.up_width()) +
                static_cast<double>(shape.heads_width() + shape.ffn_width) * width +
                2.0 * keys * static_cast<double>(shape.heads_width())));
  }
  times.head = time_of(width * static_cast<double>(shape.vocab_size));
  return times;
}

std::vector<int> layers_per_chunk(const TrainingOptions& options, int num_chunks) {
  const auto num_layers = static_cast<int>(options.model.num_layers);
  const std::vector<int>& asked = options.pipeline.layers_per_chunk;
  if (asked.empty()) return schedule::balanced_layers(layer_times(options.model), num_chunks);
  schedule::check_layers_per_chunk(asked, num_layers, num_chunks);
  return asked;
}

std::vector<Chunk> chunks_of(const std::vector<int>& layers) {
  std::vector<Chunk> chunks;
  int first = 0;
  for (const int num_blocks : layers) {
    const auto number = static_cast<int>(chunks.size());
    chunks.push_back({number, first, num_blocks, number == 0, chunks.size() + 1 == layers.size()});
    first += num_blocks;
  }
  return chunks;
}

int head_unit(const model::ModelShape& shape) {
  return shape.tied ? 0 : 1 + static_cast<int>(shape.num_layers);
}

struct ScheduleRequest {
  schedule::OrderRequest order;
  bool whole_backwards = false;
};

bool same(const ScheduleRequest& first, const ScheduleRequest& second) {
  const schedule::OrderRequest &a = first.order, &b = second.order;
  return a.order == b.order && a.num_ranks == b.num_ranks &&
         a.chunks_per_rank == b.chunks_per_rank && a.num_micro_batches == b.num_micro_batches &&
         first.whole_backwards == second.whole_backwards;
}

// A plan asks for the same one for each rank, stage and purpose: the last one is kept.
std::shared_ptr<const schedule::Schedule> schedule_of(const ScheduleRequest& request) {
  thread_local ScheduleRequest last_request;
  thread_local std::shared_ptr<const schedule::Schedule> last;
  if (last && same(request, last_request)) return last;
  schedule::Schedule order = schedule::generate(request.order);
  if (request.whole_backwards) order = schedule::with_whole_backwards(std::move(order));
  auto made = std::make_shared<const schedule::Schedule>(schedule::with_messages(std::move(order)));
  if (const auto violation = schedule::first_violation(*made)) {
    throw UsageError("the schedule {} can't be executed: {}",
                     schedule::name_of(request.order.order), violation->text);
  }
  last_request = request;
  return last = std::move(made);
}

}  // namespace

// The head's forward and backward run together, in its chunk's backward. What is frozen has no weight gradient.
schedule::StepTimes estimated_times(const PipelinePlan& plan, const model::ModelShape& shape) {
  const schedule::LayerTimes times = layer_times(shape);
  schedule::StepTimes estimated;
  for (const Chunk& chunk : plan.chunks) {
    schedule::Duration blocks{};
    for (int block = chunk.first_block; block < chunk.end_block(); ++block) {
      blocks += times.layers[static_cast<std::size_t>(block)];
    }
    const int weights = shape.adapter.active() ? 0 : 1;
    const schedule::Duration head = chunk.head ? (2 + weights) * times.head : schedule::Duration{};
    estimated.chunks.push_back({.forward = blocks,
                                .input_gradient = blocks + head,
                                .weight_gradient = weights * blocks,
                                .backward = (1 + weights) * blocks + head});
  }
  return estimated;
}

PipelinePlan pipeline_plan(const TrainingOptions& options, const sharding::Mesh& mesh) {
  const int degree = mesh.degree(sharding::kPipelineAxis);
  const PipelineOptions& asked = options.pipeline;
  schedule::OrderRequest request{.order = schedule::Order::kLayerParallel,
                                 .num_ranks = degree,
                                 .chunks_per_rank = 1,
                                 .num_micro_batches = 1};
  if (degree > 1) {
    request.num_micro_batches = options.num_micro_steps;
    request.order = asked.order;
    request.chunks_per_rank = asked.chunks_per_rank;
  }
  // Frozen matrices have no weight gradients, and adapters' own are too small to fill a gap.
  PipelinePlan plan{
      schedule_of({request, options.model.adapter.active()}), {}, options.num_micro_steps};
  plan.chunks = degree == 1 ? chunks_of({static_cast<int>(options.model.num_layers)})
                            : chunks_of(layers_per_chunk(options, plan.layout().num_chunks()));
  return plan;
}

RankPipeline rank_pipeline(const TrainingOptions& options, const sharding::Mesh& mesh, int rank) {
  RankPipeline pipeline{
      pipeline_plan(options, mesh), mesh.coordinate(rank, sharding::kPipelineAxis), {}};
  for (const int number : pipeline.plan.layout().chunks_of(pipeline.place)) {
    pipeline.chunks.push_back(pipeline.chunk(number));
  }
  return pipeline;
}

std::vector<int> units_of(const RankPipeline& pipeline, const model::ModelShape& shape) {
  std::set<int> units;
  for (const Chunk& chunk : pipeline.chunks) {
    if (chunk.embedding) units.insert(0);
    for (int block = chunk.first_block; block < chunk.end_block(); ++block) units.insert(1 + block);
    if (chunk.head) units.insert(head_unit(shape));
  }
  return {units.begin(), units.end()};
}

std::vector<int> forward_uses(const Chunk& chunk, const model::ModelShape& shape, bool evaluates) {
  std::vector<int> uses;
  if (chunk.embedding) uses.push_back(0);
  for (int block = chunk.first_block; block < chunk.end_block(); ++block) uses.push_back(1 + block);
  if (chunk.head && evaluates) uses.push_back(head_unit(shape));
  return uses;
}

std::vector<int> backward_uses(const Chunk& chunk, const model::ModelShape& shape) {
  std::vector<int> uses;
  if (chunk.head) uses.push_back(head_unit(shape));
  for (int block = chunk.end_block(); block > chunk.first_block; --block) uses.push_back(block);
  return uses;  // the embedding's backward needs no parameters
}

bool weight_gradients_use_parameters(const model::ModelShape& shape) {
  return shape.recompute == model::Recompute::kSelective;
}

std::vector<int> step_uses(const RankPipeline& pipeline, const model::ModelShape& shape) {
  std::vector<int> uses;
  if (pipeline.whole()) {
    for (int i = 0; i < pipeline.plan.num_micro_batches; ++i) {
      for (const auto& more : {forward_uses(pipeline.chunks[0], shape, false),
                               backward_uses(pipeline.chunks[0], shape)}) {
        uses.insert(uses.end(), more.begin(), more.end());
      }
    }
    return uses;
  }
  for (const schedule::Action& action : pipeline.actions()) {
    const Chunk& chunk = pipeline.chunk(action.chunk);
    std::vector<int> more;
    if (action.kind == schedule::ActionKind::kForward) more = forward_uses(chunk, shape, false);
    if (schedule::makes_input_gradient(action.kind)) more = backward_uses(chunk, shape);
    if (action.kind == schedule::ActionKind::kWeightGradient &&
        weight_gradients_use_parameters(shape)) {
      for (int block = chunk.end_block(); block > chunk.first_block; --block) more.push_back(block);
    }
    uses.insert(uses.end(), more.begin(), more.end());
  }
  return uses;
}

std::vector<int> pass_uses(const RankPipeline& pipeline, const model::ModelShape& shape,
                           int num_passes) {
  std::vector<int> uses;
  const auto pass = [&](const Chunk& chunk) {
    const std::vector<int> more = forward_uses(chunk, shape, true);
    uses.insert(uses.end(), more.begin(), more.end());
  };
  if (pipeline.whole()) {
    for (int i = 0; i < num_passes; ++i) pass(pipeline.chunks.front());
    return uses;
  }
  for (const schedule::Action& action : pass_actions(pipeline, num_passes)) {
    if (action.kind == schedule::ActionKind::kForward) pass(pipeline.chunk(action.chunk));
  }
  return uses;
}

int passes_at_once(const RankPipeline& pipeline) {
  constexpr int kMost = 32;  // between two looks for a request to stop
  return pipeline.whole() ? 1 : std::min(4 * pipeline.degree(), kMost);
}

// Of one rank after the other, and of one group after the other, the same is asked for: the last one is kept.
std::vector<schedule::Action> pass_actions(const RankPipeline& pipeline, int num_passes) {
  thread_local schedule::Schedule last;
  if (last.layout != pipeline.plan.layout() || last.num_micro_batches != num_passes ||
      last.ranks.empty()) {
    last = schedule::with_messages(schedule::forwards_only(pipeline.plan.layout(), num_passes));
  }
  return last.ranks[static_cast<std::size_t>(pipeline.place)];
}

}  // namespace sherd::engine
