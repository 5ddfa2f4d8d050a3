#include "engine/train/sharded_model.h"

#include <numeric>
#include <span>

#include "engine/model/transformer.h"
#include "engine/train/frozen_weights.h"
#include "engine/train/sharding_plan.h"
#include "kernels/pointwise.h"

namespace sherd::engine {
namespace {

std::vector<sharding::UnitState> make_units(const TrainingOptions& options,
                                            const sharding::Rank& rank) {
  std::vector<sharding::UnitState> units;
  for (sharding::UnitPlan& unit : sharding_plan(options, rank.mesh).units) {
    units.emplace_back(std::move(unit), rank);
  }
  return units;
}

// An element's initial value depends on (seed, parameter, its index) alone.
void fill_initial_values(const sharding::UnitState& unit, Stream& stream, std::uint64_t seed) {
  for (const int slice_index : unit.updated_slices()) {
    const Tensor slice = unit.fp32_slice(slice_index);
    for (const sharding::Piece& piece : unit.layout().pieces(slice_index)) {
      const ParameterSpec& parameter = unit.spec().parameters[piece.parameter];
      const Tensor out = slice.part(piece.position, piece.count);
      fill_initial_part(stream, parameter, seed, piece.first_element, out);
    }
  }
}

}  // namespace

std::vector<int> training_uses(const model::ModelShape& shape) {
  std::vector<int> uses = evaluation_uses(shape);
  for (auto block = static_cast<int>(shape.num_layers); block >= 1; --block) uses.push_back(block);
  return uses;  // the embedding's backward needs no parameters
}

std::vector<int> evaluation_uses(const model::ModelShape& shape) {
  const auto num_blocks = static_cast<int>(shape.num_layers);
  std::vector<int> uses(static_cast<std::size_t>(num_blocks) + 1);
  std::iota(uses.begin(), uses.end(), 0);  // the embedding, and the blocks behind it
  uses.push_back(shape.tied ? 0 : 1 + num_blocks);
  return uses;
}

BufferSpec loss_sum_buffer() {
  return {"loss_sum", Category::kWorkspace, DType::kF64, ExactSum::kNumbers, kAlways, true};
}

ShardedModel::ShardedModel(const TrainingOptions& options, const sharding::Rank& rank)
    : options_(options),
      rank_(rank),
      num_blocks_(static_cast<int>(options.model.num_layers)),
      tied_(options.model.tied),
      units_(make_units(options, rank)),
      frozen_(std::make_unique<FrozenWeights>(rank, units_)),
      parameters_(rank, units_, options.gather),
      gradients_(rank, units_, options.num_micro_steps),
      transformer_(
          std::make_unique<model::Transformer>(options.model, *rank.memory, rank.compute())),
      loss_sum_(rank, loss_sum_buffer()) {
  // Guarded, because gathers are under way here: if anything fails before the run begins, they must
  // have left these buffers.
  rank_.guard([&] {
    frozen_->fill_initial_values(options.seed);
    for (std::size_t unit = 0; unit < units_.size(); ++unit) {
      fill_initial_values(units_[unit], rank_.compute(), options.seed);
      parameters_.publish(static_cast<int>(unit));
    }
  });
}

ShardedModel::~ShardedModel() = default;

// What a block's kernels depend on besides shapes that never change: where its parameters and
// gradients stand, and the pass. Dropout draws anew at every step, and a recomputed block's
// backward depends on what the last forward left: those are never the same work again.
void ShardedModel::section(const char* label, int unit, const std::vector<Tensor>& parameters,
                           const std::vector<Tensor>& gradients, const model::Pass& pass,
                           const std::function<void()>& enqueue) {
  const model::ModelShape& shape = transformer_->shape();
  const bool repeats = (!pass.training || (shape.dropout == 0.0 && shape.adapter.dropout == 0.0)) &&
                       shape.recompute != model::Recompute::kFull;
  if (!repeats || !rank_.compute().keeps_sections()) return enqueue();
  rank_.compute().section(fmt::format("{} {} {} {} {} {} {}", label, unit, parameters[0].data,
                                      gradients.empty() ? nullptr : gradients.back().data,
                                      pass.training, shape.sequences, shape.seq_length),
                          enqueue);
}

void ShardedModel::forward(const model::Pass& pass, Phase phase) {
  rank_.memory->enter(phase);
  const model::ModelShape& shape = options_.model;
  {
    TraceSpan span(rank_.compute(), "forward embedding");
    transformer_->embed(model::embedding_parameters(shape, parameters_.get(embedding_unit())),
                        pass);
    parameters_.release(embedding_unit());
  }
  for (int block = 0; block < num_blocks_; ++block) {
    const int unit = block_unit(block);
    const auto views = parameters_.get(unit);
    TraceSpan span(rank_.compute(), "forward " + units_[unit].name());
    section("forward", unit, views, {}, pass, [&] {
      transformer_->block_forward(block, model::block_parameters(shape, views), pass);
    });
    parameters_.release(unit);
  }
}

void ShardedModel::backward(const model::Pass& pass) {
  const model::ModelShape& shape = options_.model;
  rank_.memory->enter(kLoss);
  {
    const auto views = parameters_.get(head_unit());
    TraceSpan span(rank_.compute(), "head and loss");
    transformer_->head_train(model::head_parameters(shape, views),
                             model::head_parameters(shape, gradients_.open(head_unit())), pass);
    parameters_.release(head_unit());
    // A tied matrix stays open: the embedding's share is still to come.
    if (!tied_) gradients_.close(head_unit());
  }
  rank_.memory->enter(kBackward);
  for (int block = num_blocks_ - 1; block >= 0; --block) {
    const int unit = block_unit(block);
    const auto views = parameters_.get(unit);
    const auto gradients = gradients_.open(unit);
    TraceSpan span(rank_.compute(), "backward " + units_[unit].name());
    section("backward", unit, views, gradients, pass, [&] {
      transformer_->block_backward(block, model::block_parameters(shape, views),
                                   model::block_parameters(shape, gradients), pass);
    });
    parameters_.release(unit);
    gradients_.close(unit);
  }
  TraceSpan span(rank_.compute(), "backward embedding");
  if (model::trains_embedding(shape)) {
    transformer_->embed_backward(
        model::embedding_parameters(shape, gradients_.open(embedding_unit())), pass);
  }
  gradients_.close(embedding_unit());
}

void ShardedModel::evaluate_head(const model::Pass& pass) {
  transformer_->head_evaluate(model::head_parameters(options_.model, parameters_.get(head_unit())),
                              pass);
  parameters_.release(head_unit());
}

Tensor ShardedModel::logits(std::int64_t first, std::int64_t count) {
  const Tensor logits = transformer_->logits(
      model::head_parameters(options_.model, parameters_.get(head_unit())), first, count);
  parameters_.release(head_unit());
  return logits;
}

void ShardedModel::add_losses(std::int64_t num_tokens, bool first) {
  kernels::sum(rank_.compute(), transformer_->losses().part(0, num_tokens), loss_sum_.device(),
               !first);
}

ExactSum ShardedModel::loss_sum() {
  loss_sum_.to_host(rank_.compute());
  rank_.compute().synchronize();
  return ExactSum(std::span(loss_sum_.host().as<double>(), ExactSum::kNumbers));
}

}  // namespace sherd::engine
