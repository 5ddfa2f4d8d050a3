// Makes a rank's units and everything that computes them, and fills in their initial values.

#include <span>

#include "engine/model/adapter.h"
#include "engine/model/initial_values.h"
#include "engine/model/transformer.h"
#include "engine/train/layout/sharding_plan.h"
#include "engine/train/layout/slot_book.h"
#include "engine/train/units/answer_losses.h"
#include "engine/train/units/frozen_weights.h"
#include "engine/train/units/kept_inputs.h"
#include "engine/train/units/model_collectives.h"
#include "engine/train/units/unit_runner.h"
#include "optim/compressed_sum.h"

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

// One token's logits, put together from ranks that have some of them or some of the tokens.
std::optional<BufferSpec> whole_logits_buffer(const model::ModelShape& part) {
  if (!part.part.is_cut() && !part.context.is_cut()) return std::nullopt;
  return BufferSpec{"tensor.logits", Category::kActivations, part.dtype, part.whole_vocab_size(),
                    kEvaluation};
}

void append(std::vector<BufferSpec>& to, const std::vector<BufferSpec>& more) {
  to.insert(to.end(), more.begin(), more.end());
}

void fill_initial_values(const sharding::UnitState& unit, const sharding::Rank& rank,
                         std::uint64_t seed) {
  for (const int slice_index : unit.updated_slices()) {
    const Tensor slice = unit.fp32_slice(slice_index);
    for (const sharding::Piece& piece : unit.layout().pieces(slice_index)) {
      const ParameterSpec& parameter = unit.spec().parameters[piece.parameter];
      const std::vector<Box> held =
          parameter.cut ? parameter.cut->boxes() : model::whole_box(parameter);
      const std::int64_t columns = parameter.cut ? parameter.cut->columns() : held[0].num_columns;
      rank.each_part(rank.compute(), slice.part(piece.position, piece.count), true,
                     [&](const Tensor& part, std::int64_t first) {
                       model::fill_initial_values(rank.compute(), seed, parameter, held, columns,
                                                  piece.first_element + first, part);
                     });
    }
  }
}

}  // namespace

std::vector<BufferSpec> UnitRunner::buffers(const TrainingOptions& options,
                                            const sharding::ShardingPlan& plan,
                                            const RankPipeline& pipeline,
                                            const kernels::ComputeDevice& device, int rank) {
  std::vector<BufferSpec> buffers;
  for (const sharding::UnitPlan& unit : plan.units) append(buffers, unit_buffers(unit).list());
  append(buffers, gather_buffers(plan.units, options.gather));
  append(buffers, frozen_weight_buffers(plan.units, model::has_frozen(options.model),
                                        plan.mesh.world_size()));
  append(buffers, reduction_buffers(plan.units, options.num_micro_steps).list());
  if (options.compression) {
    append(buffers,
           optim::CompressedSum::buffers(*options.compression, plan, options.num_micro_steps));
  }
  if (auto pushed = pushed_buffer(plan.units, plan.mesh, options.num_micro_steps)) {
    buffers.push_back(std::move(*pushed));
  }
  append(buffers, LossSums::buffers(options));
  if (plan.mesh.is_owner(rank)) return buffers;
  if (pipeline.has_head()) append(buffers, AnswerLosses::buffers(options));
  const model::ModelShape shape = rank_model(options, plan.mesh, rank);
  const std::optional<model::ModelPart> part = model_part(pipeline, options);
  append(buffers, model::Activations::list(shape, device, part ? &*part : nullptr));
  append(buffers, ModelCollectives::buffers(shape));
  if (auto logits = whole_logits_buffer(shape)) buffers.push_back(std::move(*logits));
  append(buffers, KeptInputs::buffers(shape));
  return buffers;
}

UnitRunner::UnitRunner(const TrainingOptions& options, const sharding::Rank& rank,
                       const RankPipeline& pipeline)
    : options_(options),
      rank_(rank),
      shape_(rank_model(options, rank.mesh, rank.rank)),
      tied_(options.model.tied),
      has_head_(pipeline.has_head() && !rank.mesh.is_owner(rank.rank)),
      has_whole_model_(pipeline.whole()),
      units_(make_units(options, rank)),
      frozen_(std::make_unique<FrozenWeights>(rank, units_, model::has_frozen(options.model))),
      parameters_(rank, units_, options.gather),
      compressed_sum_(options.compression
                          ? optim::CompressedSum::make(*options.compression, rank, units_,
                                                       options.num_micro_steps)
                          : nullptr),
      gradients_(rank, units_, options.num_micro_steps, compressed_sum_.get()),
      loss_sums_(options, rank) {
  for (const sharding::UnitState& unit : units_) {
    places_.emplace(unit.spec().id, static_cast<int>(places_.size()));
  }
  if (rank.mesh.is_owner(rank.rank)) return;
  const std::optional<model::ModelPart> part = model_part(pipeline, options);
  const model::ModelShape& shape = shape_;
  if (shape.part.is_cut() || shape.context.is_cut() || shape.expert.is_cut()) {
    collectives_ = std::make_unique<ModelCollectives>(shape, rank);
  }
  logits_ = rank.acquire(whole_logits_buffer(shape));
  transformer_ = std::make_unique<model::Transformer>(
      shape, *rank.memory, rank.compute(),
      collectives_ ? static_cast<model::Collectives&>(*collectives_) : model::no_collectives(),
      part ? &*part : nullptr);
  if (shape.residual_slots > 0) {
    inputs_ = std::make_unique<KeptInputs>(rank, shape, *transformer_);
  }
  if (has_head_ && !AnswerLosses::buffers(options).empty()) {
    answers_ = std::make_unique<AnswerLosses>(options, rank);
  }
}

UnitRunner::~UnitRunner() {
  collectives_.reset();  // what it still sends is in buffers of the transformer
}

void UnitRunner::fill_initial_values() {
  frozen_->fill_initial_values(options_.seed);
  for (std::size_t unit = 0; unit < units_.size(); ++unit) {
    if (options_.draws_weights) {
      engine::fill_initial_values(units_[unit], rank_, options_.seed);
    }
    publish_first(static_cast<int>(unit));
  }
}

void UnitRunner::publish_first(int unit) {
  if (options_.placement.published_late) return parameters_.publish_kept(unit, true);
  parameters_.publish(unit);
}

}  // namespace sherd::engine
