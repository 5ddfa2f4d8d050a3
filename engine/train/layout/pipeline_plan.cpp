#include "engine/train/layout/pipeline_plan.h"
#include "engine/schedule/generate.h"

#include <algorithm>
#include <map>
#include <set>

#include "core/error.h"
#include "engine/model/adapter.h"
#include "engine/model/sites.h"
#include "engine/schedule/balance.h"
#include "engine/schedule/forwards.h"
#include "engine/schedule/passes.h"

namespace sherd::engine {
namespace {

// A nanosecond for each multiplication of a token: only their ratios matter.
schedule::Duration time_of(double multiplications) {
  return schedule::Duration(static_cast<std::int64_t>(multiplications));
}

// Of what a token goes through in a layer with experts: the router, and some of these.
double expert_widths(const model::ModelShape& shape, std::int64_t layer) {
  if (!shape.has_experts(layer)) return 0.0;
  const std::int64_t gates = shape.gated() ? 2 : 1;
  return static_cast<double>(shape.moe.experts +
                             shape.moe.per_token * (gates + 1) * shape.moe.ffn_width);
}

// Of a token's queries, keys and values.
double projected(const model::ModelShape& shape) {
  const auto width = static_cast<double>(shape.width);
  const model::LatentShape& latent = shape.latent;
  if (!latent.active()) return width * static_cast<double>(shape.qkv_width());
  const auto heads = static_cast<double>(shape.heads_width());
  const auto rank = static_cast<double>(latent.query_rank);
  const double queries = latent.query_rank > 0 ? rank * (width + heads) : width * heads;
  return queries + width * static_cast<double>(latent.down_width()) +
         static_cast<double>(latent.kv_rank * latent.up_width(shape.query_heads));
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
    times.layers.push_back(time_of(
        projected(shape) + width * static_cast<double>(shape.up_width(i)) +
        static_cast<double>(shape.attended_width() + shape.ffn_width_of(i)) * width +
        2.0 * keys * static_cast<double>(shape.heads_width()) + width * expert_widths(shape, i)));
  }
  times.head = time_of(width * static_cast<double>(shape.vocab_size));
  return times;
}

// A plan asks for the same ones for each rank, stage and purpose: the last ones are kept.
std::vector<int> balanced_layers(const model::ModelShape& shape, int num_chunks) {
  thread_local schedule::LayerTimes last_times;
  thread_local std::vector<int> last;
  schedule::LayerTimes times = layer_times(shape);
  if (std::ssize(last) == num_chunks && times == last_times) return last;
  last = schedule::balanced_layers(times, num_chunks);
  last_times = std::move(times);
  return last;
}

std::vector<int> layers_per_chunk(const TrainingOptions& options, int num_chunks) {
  const auto num_layers = static_cast<int>(options.model.num_layers);
  const std::vector<int>& asked = options.pipeline.layers_per_chunk;
  if (asked.empty()) return balanced_layers(options.model, num_chunks);
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

void append(std::vector<UnitId>& to, const std::vector<UnitId>& more) {
  to.insert(to.end(), more.begin(), more.end());
}

// The blocks of a chunk that have a backward, from the last one to the first.
std::vector<UnitId> layers_backwards(const Chunk& chunk, const model::ModelShape& shape) {
  std::vector<UnitId> uses;
  const int first = first_backward(chunk, shape);
  for (int block = chunk.end_block() - 1; block >= first; --block) {
    append(uses, layer_units(shape, block));
  }
  return uses;
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
  last_request = request;
  return last =
             std::make_shared<const schedule::Schedule>(schedule::with_messages(std::move(order)));
}

}  // namespace

// The head's forward and backward run together, in its chunk's backward. What is frozen has no
// weight gradient.
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
      schedule_of({request, model::has_frozen(options.model)}), {}, options.num_micro_steps};
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

std::vector<UnitId> layer_units(const model::ModelShape& shape, int layer) {
  std::vector<UnitId> units;
  for (int part = 0; part <= static_cast<int>(shape.layer_parts.size()); ++part) {
    if (model::has_part(shape, layer, part)) units.push_back({UnitRole::kLayer, layer, part});
  }
  return units;
}

std::vector<UnitId> prediction_units(const model::ModelShape& shape) {
  std::vector<UnitId> units;
  for (std::int64_t block = shape.num_layers; block < shape.num_blocks(); ++block) {
    append(units, layer_units(shape, static_cast<int>(block)));
  }
  return units;
}

std::vector<UnitId> all_units(const model::ModelShape& shape) {
  std::vector<UnitId> units = {embedding_unit()};
  for (int layer = 0; layer < static_cast<int>(shape.num_layers); ++layer) {
    append(units, layer_units(shape, layer));
  }
  append(units, prediction_units(shape));
  if (!shape.tied) units.push_back(head_unit(shape));
  return units;
}

UnitId head_unit(const model::ModelShape& shape) {
  return shape.tied ? embedding_unit() : UnitId{UnitRole::kHead};
}

std::vector<UnitId> units_of(const RankPipeline& pipeline, const model::ModelShape& shape) {
  std::set<UnitId> units;  // in the order of roles, layers and parts, as the table
  for (const Chunk& chunk : pipeline.chunks) {
    const std::vector<UnitId> uses = forward_uses(chunk, shape, true);
    units.insert(uses.begin(), uses.end());
    if (!chunk.head) continue;
    const std::vector<UnitId> predictions = prediction_units(shape);
    units.insert(predictions.begin(), predictions.end());
  }
  return {units.begin(), units.end()};
}

int first_backward(const Chunk& chunk, const model::ModelShape& shape) {
  return std::max(chunk.first_block, static_cast<int>(model::lowest_trained_block(shape)));
}

std::vector<UnitId> forward_uses(const Chunk& chunk, const model::ModelShape& shape,
                                 bool evaluates) {
  std::vector<UnitId> uses;
  if (chunk.embedding) uses.push_back(embedding_unit());
  for (int block = chunk.first_block; block < chunk.end_block(); ++block) {
    append(uses, layer_units(shape, block));
  }
  if (!chunk.head || (!evaluates && shape.mtp_layers == 0)) return uses;
  uses.push_back(head_unit(shape));
  if (!evaluates) append(uses, prediction_units(shape));
  return uses;
}

std::vector<UnitId> backward_uses(const Chunk& chunk, const model::ModelShape& shape) {
  std::vector<UnitId> uses;
  if (chunk.head) {
    uses.push_back(head_unit(shape));
    for (std::int64_t block = shape.num_blocks(); block-- > shape.num_layers;) {
      append(uses, layer_units(shape, static_cast<int>(block)));
    }
    if (shape.mtp_layers > 0) uses.push_back(head_unit(shape));  // the backward of its norm
  }
  append(uses, layers_backwards(chunk, shape));
  return uses;  // the embedding's backward needs no parameters
}

bool weight_gradients_use_parameters(const model::ModelShape& shape) {
  return shape.recompute == model::Recompute::kSelective || shape.moe.active();
}

std::vector<UnitId> step_uses(const RankPipeline& pipeline, const model::ModelShape& shape) {
  std::vector<UnitId> uses;
  if (pipeline.whole()) {
    for (int i = 0; i < pipeline.plan.num_micro_batches; ++i) {
      append(uses, forward_uses(pipeline.chunks[0], shape, false));
      append(uses, backward_uses(pipeline.chunks[0], shape));
    }
    return uses;
  }
  struct OfChunk {
    std::vector<UnitId> forward, backward, weights;
  };
  std::map<int, OfChunk> of_chunks;
  for (const Chunk& chunk : pipeline.chunks) {
    OfChunk& of = of_chunks[chunk.number];
    of.forward = forward_uses(chunk, shape, false);
    of.backward = backward_uses(chunk, shape);
    if (weight_gradients_use_parameters(shape)) of.weights = layers_backwards(chunk, shape);
  }
  for (const schedule::Action& action : pipeline.actions()) {
    const OfChunk& of = of_chunks.at(action.chunk);
    if (action.kind == schedule::ActionKind::kForward) append(uses, of.forward);
    if (schedule::makes_input_gradient(action.kind)) append(uses, of.backward);
    if (action.kind == schedule::ActionKind::kWeightGradient) append(uses, of.weights);
  }
  return uses;
}

std::vector<UnitId> pass_uses(const RankPipeline& pipeline, const model::ModelShape& shape,
                              int num_passes) {
  std::vector<UnitId> uses;
  if (pipeline.whole()) {
    for (int i = 0; i < num_passes; ++i) {
      append(uses, forward_uses(pipeline.chunks.front(), shape, true));
    }
    return uses;
  }
  for (const schedule::Action& action : pass_actions(pipeline, num_passes)) {
    if (action.kind != schedule::ActionKind::kForward) continue;
    append(uses, forward_uses(pipeline.chunk(action.chunk), shape, true));
  }
  return uses;
}

std::vector<int> places_of(const std::vector<UnitId>& uses,
                           const std::vector<sharding::UnitPlan>& units) {
  std::map<UnitId, int> places;
  for (const sharding::UnitPlan& unit : units) {
    places.emplace(unit.spec.id, static_cast<int>(places.size()));
  }
  std::vector<int> in_units;
  for (const UnitId& use : uses) {
    const auto place = places.find(use);
    SHERD_CHECK(place != places.end(), "this rank doesn't have a unit of layer {} that it uses",
                use.layer);
    in_units.push_back(place->second);
  }
  return in_units;
}

int passes_at_once(const RankPipeline& pipeline) {
  constexpr int kMost = 32;  // between two looks for a request to stop
  return pipeline.whole() ? 1 : std::min(4 * pipeline.degree(), kMost);
}

// Of one rank after the other, and of one group after the other, the same is asked for: the last
// one is kept.
std::vector<schedule::Action> pass_actions(const RankPipeline& pipeline, int num_passes) {
  thread_local schedule::Schedule last;
  if (last.layout != pipeline.plan.layout() || last.num_micro_batches != num_passes ||
      last.ranks.empty()) {
    last = schedule::with_messages(schedule::forwards_only(pipeline.plan.layout(), num_passes));
  }
  return last.ranks[static_cast<std::size_t>(pipeline.place)];
}

}  // namespace sherd::engine
