#include "engine/train/sharded_model.h"

#include <algorithm>
#include <span>

#include "engine/model/adapter.h"
#include "engine/model/initial_values.h"
#include "engine/model/transformer.h"
#include "engine/train/frozen_weights.h"
#include "engine/train/model_collectives.h"
#include "engine/train/pipeline/pipeline.h"
#include "engine/train/sharding_plan.h"
#include "kernels/interleaved.h"
#include "kernels/pointwise.h"
#include "sharding/mesh/waits.h"

namespace sherd::engine {
namespace {

std::vector<sharding::UnitState> make_units(const TrainingOptions& options,
                                            const sharding::Rank& rank) {
  std::vector<sharding::UnitState> units;
  for (sharding::UnitPlan& unit : sharding_plan(options, rank.mesh, rank.rank).units) {
    units.emplace_back(std::move(unit), rank);
  }
  return units;
}

// Where those of a token are put together, of ranks that have some of them or some of the tokens.
BufferSpec whole_logits_buffer(const model::ModelShape& part) {
  return {"tensor.logits", Category::kActivations, part.dtype, part.whole_vocab_size(),
          kEvaluation};
}

void fill_initial_values(const sharding::UnitState& unit, Stream& stream, std::uint64_t seed) {
  for (const int slice_index : unit.updated_slices()) {
    const Tensor slice = unit.fp32_slice(slice_index);
    for (const sharding::Piece& piece : unit.layout().pieces(slice_index)) {
      const ParameterSpec& parameter = unit.spec().parameters[piece.parameter];
      const std::vector<Box> held =
          parameter.cut ? parameter.cut->boxes() : model::whole_box(parameter);
      const std::int64_t columns = parameter.cut ? parameter.cut->columns() : held[0].num_columns;
      model::fill_initial_values(stream, seed, parameter, held, columns, piece.first_element,
                                 slice.part(piece.position, piece.count));
    }
  }
}

}  // namespace

BufferSpec loss_sum_buffer() {
  return {"loss_sum", Category::kWorkspace, DType::kF64, ExactSum::kNumbers, kAlways, true};
}

std::vector<BufferSpec> tensor_buffers(const model::ModelShape& part) {
  std::vector<BufferSpec> buffers;
  if (part.part.is_cut()) buffers.push_back(tensor_sum_tail(part.part));
  if (part.part.is_cut() || part.context.is_cut()) buffers.push_back(whole_logits_buffer(part));
  return buffers;
}

ShardedModel::ShardedModel(const TrainingOptions& options, const sharding::Rank& rank)
    : options_(options),
      rank_(rank),
      num_blocks_(static_cast<int>(options.model.num_layers)),
      tied_(options.model.tied),
      has_head_(false),
      units_(make_units(options, rank)),
      frozen_(std::make_unique<FrozenWeights>(rank, units_)),
      parameters_(rank, units_, options.gather),
      gradients_(rank, units_, options.num_micro_steps),
      loss_sum_(rank, loss_sum_buffer()) {
  RankPipeline pipeline = rank_pipeline(options, rank.mesh, rank.rank);
  numbers_ = units_of(pipeline, options.model);
  has_head_ = pipeline.has_head();
  const std::optional<model::ModelPart> part = model_part(pipeline, options);
  const model::ModelShape shape = rank_model(options, rank.mesh, rank.rank);
  if (shape.part.is_cut() || shape.context.is_cut()) {
    collectives_ = std::make_unique<ModelCollectives>(shape, rank);
  }
  if (shape.part.is_cut() || shape.context.is_cut()) {
    logits_ = rank.memory->acquire(whole_logits_buffer(shape));
  }
  transformer_ = std::make_unique<model::Transformer>(
      shape, *rank.memory, rank.compute(),
      collectives_ ? static_cast<model::Collectives&>(*collectives_) : model::no_collectives(),
      part ? &*part : nullptr);
  pipeline_ = std::make_unique<Pipeline>(options, std::move(pipeline), *this);
  // Guarded, because gathers are under way here: if anything fails before the run begins, they must
  // have left these buffers. And whoever loads weights over these values needn't wait for them any more.
  rank_.guard([&] {
    frozen_->fill_initial_values(options.seed);
    for (std::size_t unit = 0; unit < units_.size(); ++unit) {
      if (options.draws_weights) {
        fill_initial_values(units_[unit], rank_.compute(), options.seed);
      }
      parameters_.publish(static_cast<int>(unit));
    }
  });
}

ShardedModel::~ShardedModel() {
  collectives_.reset();  // what it still sends lies in buffers of the transformer
}

// What a block's kernels depend on besides shapes that never change: where its parameters, gradients and
// activations stand, and the pass. Dropout draws anew at every step, a recomputed block's backward depends
// on what the last forward left, and with a cache each pass begins at another position: those are never
// the same work again.
void ShardedModel::section(const char* label, int unit, const std::vector<Tensor>& parameters,
                           const std::vector<Tensor>& gradients, const model::Pass& pass,
                           const std::function<void()>& enqueue) {
  const model::ModelShape& shape = transformer_->shape();
  const bool repeats = (!pass.training || (shape.dropout == 0.0 && shape.adapter.dropout == 0.0)) &&
                       shape.recompute != model::Recompute::kFull && shape.cached_positions == 0;
  if (!repeats || !rank_.compute().keeps_sections()) return enqueue();
  rank_.compute().section(
      fmt::format("{} {} {} {} {} {} {} {} {} {} {}", label, unit, parameters[0].data,
                  gradients.empty() ? nullptr : gradients.back().data, pass.training,
                  shape.sequences, shape.seq_length, pass.documents.starts.data,
                  pass.documents.count(), transformer_->residual_TD(numbers_[unit] - 1).data,
                  pipeline_->place()),
      enqueue);
}

int ShardedModel::local(int unit) const {
  const auto at = std::ranges::lower_bound(numbers_, unit);
  CHECK(at != numbers_.end() && *at == unit, "rank {} has no unit {}", rank_.rank, unit);
  return static_cast<int>(at - numbers_.begin());
}

std::vector<int> ShardedModel::local(std::vector<int> units) const {
  for (int& unit : units) unit = local(unit);
  return units;
}

std::vector<int> ShardedModel::training_uses() const {
  return local(step_uses(pipeline_->plan(), options_.model));
}

std::vector<int> ShardedModel::evaluation_uses(int num_passes) const {
  return local(pass_uses(pipeline_->plan(), options_.model, num_passes));
}

void ShardedModel::train(const std::function<model::Pass(int)>& pass_of) {
  parameters_.plan(training_uses());
  pipeline_->train(pass_of);
}

int ShardedModel::passes_at_once() const {
  return engine::passes_at_once(pipeline_->plan());
}

void ShardedModel::evaluate(int num_passes, const std::function<model::Pass(int)>& pass_of,
                            const std::function<void(int)>& behind_head) {
  parameters_.plan(evaluation_uses(num_passes));
  pipeline_->evaluate(num_passes, pass_of, behind_head);
}

std::chrono::nanoseconds ShardedModel::message_cpu_time() const {
  return pipeline_->message_cpu_time() +
         (collectives_ ? collectives_->cpu_time() : std::chrono::nanoseconds(0));
}

ShardedModel::Waits ShardedModel::waits() const {
  Waits waits{.all = rank_.compute().waited()};
  for (const std::string_view axis : sharding::kWaitAxes) {
    if (rank_.mesh.degree(axis) == 1) continue;
    std::chrono::nanoseconds waited = rank_.compute().waited_for(sharding::wait_kind(axis));
    if (collectives_) {
      waited += collectives_->time_spent(axis);
      waits.all += collectives_->time_spent(axis);
    }
    waits.by_axis.emplace_back(axis, waited);
  }
  return waits;
}

void ShardedModel::forward(const model::Pass& pass, Phase phase) {
  pipeline_->forward(pass, phase);
}

void ShardedModel::forward(const Chunk& chunk, const model::Pass& pass,
                           const std::function<void()>& before_output) {
  const model::ModelShape& shape = options_.model;
  if (chunk.embedding) {
    TraceSpan span(rank_.compute(), "forward embedding");
    const int unit = local(0);
    transformer_->embed(model::embedding_parameters(shape, parameters_.get(unit)), pass);
    parameters_.release(unit);
  }
  for (int block = chunk.first_block; block < chunk.end_block(); ++block) {
    if (before_output && block + 1 == chunk.end_block()) before_output();
    const int unit = block_unit(block);
    const auto views = parameters_.get(unit);
    TraceSpan span(rank_.compute(), "forward " + units_[unit].name());
    section("forward", unit, views, {}, pass, [&] {
      transformer_->block_forward(block, model::block_parameters(shape, views), pass);
    });
    parameters_.release(unit);
  }
}

void ShardedModel::backward(const Chunk& chunk, const model::Pass& pass, bool input_alone) {
  const model::ModelShape& shape = options_.model;
  // A matrix whose both ends are in this chunk stays open: the embedding's share is still to come.
  const bool joined = tied_ && chunk.embedding && chunk.head && !ends_apart();
  const auto end = ends_apart() ? sharding::UnitEnd::kHead : sharding::UnitEnd::kUnit;
  if (chunk.head) {
    const int unit = head_unit();
    const auto views = parameters_.get(unit);
    const auto gradients = gradients_.open(unit, end);
    if (tied_ && !joined) zero(model::embedding_parameters(shape, gradients).position_weight);
    TraceSpan span(rank_.compute(), "head and loss");
    model::HeadParameters to = model::head_parameters(shape, gradients);
    to.adds = gradients_.adds(unit);
    transformer_->head_train(model::head_parameters(shape, views), to, pass);
    parameters_.release(unit);
    if (!joined) gradients_.close(unit, end);
  }
  rank_.memory->enter(kBackward);
  for (int block = chunk.end_block() - 1; block >= chunk.first_block; --block) {
    const int unit = block_unit(block);
    const auto views = parameters_.get(unit);
    if (input_alone) {
      TraceSpan span(rank_.compute(), "input gradient " + units_[unit].name());
      transformer_->block_input_gradient(block, model::block_parameters(shape, views), pass);
      parameters_.release(unit);
      continue;
    }
    const auto gradients = gradients_.open(unit);
    TraceSpan span(rank_.compute(), "backward " + units_[unit].name());
    section(gradients_.adds(unit) ? "backward, adding" : "backward", unit, views, gradients, pass,
            [&] {
              transformer_->block_backward(block, model::block_parameters(shape, views),
                                           block_gradients(unit, gradients), pass);
            });
    parameters_.release(unit);
    gradients_.close(unit);
  }
  if (!chunk.embedding) return;
  TraceSpan span(rank_.compute(), "backward embedding");
  const int unit = local(0);
  const bool adds_to_ends = tied_ && !joined && units_[static_cast<std::size_t>(unit)].trains();
  if (model::trains_embedding(shape) || adds_to_ends) {
    const auto gradients = gradients_.open(unit);
    if (adds_to_ends) {
      const model::Affine final_norm = model::head_parameters(shape, gradients).final_norm;
      zero(final_norm.weight);
      zero(final_norm.bias);
    }
    if (model::trains_embedding(shape)) {
      const bool adds = joined || (!tied_ && gradients_.adds(unit));
      transformer_->embed_backward(model::embedding_parameters(shape, gradients), pass, adds);
    }
  }
  gradients_.close(unit);
}

model::BlockParameters ShardedModel::block_gradients(int unit,
                                                     const std::vector<Tensor>& views) const {
  model::BlockParameters gradients = model::block_parameters(options_.model, views);
  if (!gradients_.adds(unit)) return gradients;
  for (const model::Site& site : model::block_sites(options_.model)) {
    gradients[site.id].adds = site.columns > 0;
  }
  return gradients;
}

bool ShardedModel::ends_apart() const {
  return tied_ && has_head_ && units_[static_cast<std::size_t>(head_unit())].plan().ends_apart;
}

void ShardedModel::weight_gradients(const Chunk& chunk) {
  const model::ModelShape& shape = options_.model;
  rank_.memory->enter(kBackward);
  for (int block = chunk.end_block() - 1; block >= chunk.first_block; --block) {
    const int unit = block_unit(block);
    model::BlockParameters parameters;
    const bool normalises = weight_gradients_use_parameters(shape);
    if (normalises) parameters = model::block_parameters(shape, parameters_.get(unit));
    TraceSpan span(rank_.compute(), "weight gradient " + units_[unit].name());
    transformer_->block_weight_gradient(block, parameters,
                                        block_gradients(unit, gradients_.open(unit)));
    if (normalises) parameters_.release(unit);
    gradients_.close(unit);
  }
}

// Of a tied unit, what the pipeline's other end has the gradient of.
void ShardedModel::zero(const Tensor& gradient) {
  if (gradient) kernels::fill_zero(rank_.compute(), gradient);
}

void ShardedModel::evaluate_head(const model::Pass& pass) {
  if (!has_head_) return;
  transformer_->head_evaluate(model::head_parameters(options_.model, parameters_.get(head_unit())),
                              pass);
  parameters_.release(head_unit());
}

Tensor ShardedModel::logits(std::int64_t first, std::int64_t count) {
  Tensor logits;
  if (has_head_) {
    const model::ModelShape& shape = transformer_->shape();
    const model::ModelShape::Place place = shape.place_of(first);
    logits = transformer_->logits(
        model::head_parameters(options_.model, parameters_.get(head_unit())), place.token, count);
    parameters_.release(head_unit());
    if (shape.part.is_cut()) logits = whole_logits(logits);
    if (shape.context.is_cut()) logits = from_context_rank(logits, place.context_rank);
  }
  return pipeline_->from_head(logits, count * options_.model.vocab_size);
}

// Each tensor rank has those of its part of the vocabulary; the others' places are zero there.
Tensor ShardedModel::whole_logits(const Tensor& own) {
  const Tensor all = logits_.tensor();
  kernels::fill_zero(rank_.compute(), all);
  rank_.compute().copy(own.data, all.part(transformer_->shape().part.first_token, own.numel).data,
                       own.bytes());
  collectives_->sum("logits", all);
  return all;
}

bool ShardedModel::interleave_weights() {
  const model::ModelShape& shape = transformer_->shape();
  const auto comes_and_goes = [](const sharding::UnitState& unit) {
    return unit.plan().needs_slot() || unit.placement().parameters_sharded();
  };
  if (rank_.compute().device() != DeviceKind::kCpu || !pipeline_->plan().whole() ||
      shape.in_parts() || std::ranges::any_of(units_, comes_and_goes)) {
    return false;
  }
  struct Matrix {
    Tensor weight;
    std::int64_t inputs = 0;
  };
  std::vector<Matrix> matrices;
  const auto views_of = [&](int unit) {
    const sharding::UnitState& state = units_[static_cast<std::size_t>(unit)];
    const sharding::UnitPlan& plan = state.plan();
    return plan.views(plan.trains() ? state.resident_parameters() : Tensor{},
                      plan.has_frozen() ? state.frozen() : Tensor{});
  };
  for (int block = 0; block < num_blocks_; ++block) {
    const model::BlockParameters parameters =
        model::block_parameters(options_.model, views_of(block_unit(block)));
    for (const model::Site& site : model::block_sites(options_.model)) {
      if (site.columns > 0) matrices.push_back({parameters[site.id].weight, site.columns});
    }
  }
  matrices.push_back(
      {model::head_parameters(options_.model, views_of(head_unit())).weight, shape.width});
  for (const Matrix& matrix : matrices) {
    if (!kernels::can_interleave(matrix.weight.dtype, matrix.inputs)) return false;
  }
  rank_.gather().synchronize();  // they have been published
  for (const Matrix& matrix : matrices) {
    kernels::interleave(rank_.compute(), matrix.weight, matrix.inputs);
  }
  transformer_->read_interleaved();
  return true;
}

// Of the rank that has the token, on every one.
Tensor ShardedModel::from_context_rank(const Tensor& own, int owner) {
  const Tensor all = logits_.tensor();
  if (own.data != all.data) rank_.compute().copy(own.data, all.data, own.bytes());
  collectives_->broadcast_position("logits", all, owner);
  return all;
}

std::int64_t ShardedModel::most_logits() const {
  return pipeline_->plan().whole() && !logits_ ? transformer_->most_logits() : 1;
}

void ShardedModel::add_losses(std::int64_t num_tokens, bool first) {
  if (!has_head_) return;
  kernels::sum(rank_.compute(), transformer_->losses().part(0, num_tokens), loss_sum_.device(),
               !first);
}

ExactSum ShardedModel::loss_sum() {
  if (!has_head_) return {};
  loss_sum_.to_host(rank_.compute());
  rank_.compute().synchronize();
  return ExactSum(std::span(loss_sum_.host().as<double>(), ExactSum::kNumbers));
}

}  // namespace sherd::engine
