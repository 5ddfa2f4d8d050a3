#include "sharding/zero/placement.h"

#include "core/error.h"

namespace sherd::sharding {

Placement placement_of(int stage, GradSync grad_sync) {
  CHECK(stage >= 0 && stage <= 3, "ZeRO stage {}", stage);
  Placement placement;
  placement.grad_sync = grad_sync;
  if (stage >= 1) placement.optimizer = placement.slices;
  if (stage >= 2 && grad_sync == GradSync::kEveryMicroStep) placement.gradients = placement.slices;
  if (stage >= 3) placement.parameters = placement.slices;
  return placement;
}

Placement placement_of(int stage) {
  return placement_of(stage, stage >= 2 ? GradSync::kEveryMicroStep : GradSync::kBoundary);
}

AxisSet replica_axes(const Placement& placement) {
  AxisSet axes = token_axes();
  for (const std::string& axis : placement.slices) axes.erase(axis);
  return axes;
}

AxisSet copy_axes(const Mesh& mesh, const Placement& placement) {
  AxisSet axes = mesh.other_axes(placement.slices);
  axes.erase(std::string(kPipelineAxis));
  axes.erase(std::string(kTensorAxis));
  return axes;
}

bool contributes_slice(const Mesh& mesh, int rank, const Placement& placement) {
  return mesh.is_first(rank, copy_axes(mesh, placement));
}

SliceRange saved_range(const Mesh& mesh, int rank, const Placement& placement,
                       std::int64_t slice_numel) {
  const AxisSet copies = copy_axes(mesh, placement);
  const std::int64_t number = mesh.degree(copies);
  const std::int64_t index = mesh.index_in_group(rank, copies);
  const std::int64_t first = slice_numel * index / number;
  return {first, slice_numel * (index + 1) / number - first};
}

}  // namespace sherd::sharding
