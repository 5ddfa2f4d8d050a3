// Interleaving the matrices of a model that is only used: ShardedModel::interleave_weights.

#include <algorithm>

#include "engine/model/transformer.h"
#include "engine/train/units/unit_runner.h"
#include "kernels/interleaved.h"

namespace sherd::engine {

bool UnitRunner::interleave_weights() {
  const model::ModelShape& shape = transformer_->shape();
  const auto comes_and_goes = [](const sharding::UnitState& unit) {
    return unit.plan().needs_slot() || unit.placement().parameters_sharded();
  };
  if (rank_.compute().device() != DeviceKind::kCpu || !has_whole_model_ || shape.in_parts() ||
      std::ranges::any_of(units_, comes_and_goes)) {
    return false;
  }
  struct Matrix {
    Tensor weight;
    std::int64_t inputs = 0;
  };
  std::vector<Matrix> matrices;
  for (int block = 0; block < static_cast<int>(shape.num_layers); ++block) {
    Layer layer = this->layer(block);
    for (const int unit : layer.places) {
      layer.parameters[static_cast<std::size_t>(part_of(unit))] = resident_views(unit);
    }
    const model::BlockParameters parameters =
        model::block_parameters(options_.model, block, layer.parameters);
    for (const model::Site& site : model::block_sites(options_.model, block)) {
      // Parts of this one are read where heads attend to latents.
      const bool is_absorbed = site.id == model::SiteId::kKvUp && shape.is_absorbed(block);
      if (site.columns > 0 && !site.of_experts && !is_absorbed)
        matrices.push_back({parameters[site.id].weight, site.columns});
    }
  }
  matrices.push_back(
      {model::head_parameters(options_.model, resident_views(head_place())).weight, shape.width});
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

UnitRunner::Views UnitRunner::resident_views(int unit) const {
  const sharding::UnitState& state = units_[static_cast<std::size_t>(unit)];
  const sharding::UnitPlan& plan = state.plan();
  return plan.views(plan.trains() ? state.resident_parameters() : Tensor{},
                    plan.has_frozen() ? state.frozen() : Tensor{});
}

}  // namespace sherd::engine
