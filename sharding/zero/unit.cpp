#include "sharding/zero/unit.h"

#include "kernels/pointwise.h"

namespace sherd::sharding {

UnitPlan::UnitPlan(UnitSpec spec_, const Placement& placement_, const Precision& precision_,
                   const Mesh& mesh)
    : spec(std::move(spec_)),
      placement(placement_),
      precision(precision_),
      layout(spec, mesh.degree(placement.slices), mesh.degree(replica_axes(placement))),
      num_replicas(mesh.degree(replica_axes(placement))) {
  for (const AxisSet* kind : {&placement.parameters, &placement.gradients, &placement.optimizer}) {
    CHECK(kind->empty() || *kind == placement.slices, "{} is sharded over some of its slices' axes",
          spec.name);
  }
}

UnitBuffers unit_buffers(const UnitPlan& unit) {
  const std::string& name = unit.spec.name;
  const bool low_precision = unit.precision.parameters != DType::kF32;
  UnitBuffers buffers;
  if (!unit.placement.parameters_sharded()) {
    buffers.resident = {name + ".parameters", Category::kParameters, unit.precision.parameters,
                        unit.layout.numel()};
  }
  if (low_precision || unit.placement.parameters_sharded()) {
    buffers.fp32_parameters = {name + ".master",
                               low_precision ? Category::kMaster : Category::kParameters,
                               DType::kF32, unit.updated_numel()};
  }
  if (unit.placement.has_gradients) {
    buffers.gradients = {
        name + ".gradients", Category::kGradients, unit.precision.accumulate,
        unit.placement.gradients_sharded() ? unit.layout.slice_numel() : unit.layout.numel()};
  }
  return buffers;
}

UnitState::UnitState(UnitPlan plan, const Rank& rank)
    : plan_(std::move(plan)),
      own_slice_(rank.mesh.index_in_group(rank.rank, plan_.placement.slices)),
      first_of_copies_(sharding::contributes_slice(rank.mesh, rank.rank, plan_.placement)),
      saved_range_(sharding::saved_range(rank.mesh, rank.rank, plan_.placement,
                                         plan_.layout.slice_numel())) {
  if (is_second_end()) saved_range_ = {};
  const int group_size = rank.mesh.degree(plan_.placement.slices);
  CHECK(plan_.layout.num_slices() == group_size, "a unit planned for {} ranks, not {}",
        plan_.layout.num_slices(), group_size);
  if (placement().optimizer_sharded()) {
    updated_slices_ = {own_slice_};
  } else {
    for (int slice_index = 0; slice_index < group_size; ++slice_index)
      updated_slices_.push_back(slice_index);
  }
  const UnitBuffers buffers = unit_buffers(plan_);
  if (buffers.resident) resident_ = rank.memory->acquire(*buffers.resident);
  if (buffers.fp32_parameters) fp32_parameters_ = rank.memory->acquire(*buffers.fp32_parameters);
  if (buffers.gradients) gradients_ = rank.memory->acquire(*buffers.gradients);
}

Tensor UnitState::fp32_slice(int slice_index) const {
  CHECK(!placement().optimizer_sharded() || slice_index == own_slice_,
        "the holder of slice {} asked for slice {} of {}", own_slice_, slice_index, name());
  const Tensor& whole = fp32_parameters_ ? fp32_parameters_.tensor() : resident_.tensor();
  return whole.numel == layout().slice_numel() ? whole : layout().slice(whole, slice_index);
}

Tensor UnitState::gradient(int slice_index) const {
  CHECK(!placement().gradients_sharded() || slice_index == own_slice_,
        "the holder of slice {} asked for gradient {} of {}", own_slice_, slice_index, name());
  return placement().gradients_sharded() ? gradients_.tensor()
                                         : layout().slice(gradients_.tensor(), slice_index);
}

void UnitState::refresh_resident(Stream& stream, int slice_index) const {
  if (!fp32_parameters_ || !resident_) return;
  kernels::cast(stream, fp32_slice(slice_index), layout().slice(resident_.tensor(), slice_index));
}

std::vector<UnitPlan> plans_of(const std::vector<UnitState>& units) {
  std::vector<UnitPlan> plans;
  plans.reserve(units.size());
  for (const UnitState& unit : units) plans.push_back(unit.plan());
  return plans;
}

}  // namespace sherd::sharding
