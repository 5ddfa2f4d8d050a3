#include "sharding/zero/placement.h"

#include "core/error.h"

namespace sherd::sharding {

Placement placement_of(int stage, GradSync grad_sync, Replicas replicas) {
  SHERD_CHECK(stage >= 0 && stage <= 3, "ZeRO stage {}", stage);
  Placement placement;
  placement.grad_sync = grad_sync;
  if (stage >= 1) placement.optimizer = placement.group;
  if (stage >= 2 && grad_sync == GradSync::kEveryMicroStep) placement.gradients = placement.group;
  if (stage >= 3) placement.parameters = placement.group;
  if (replicas == Replicas::kDivideOptimizer) {
    SHERD_CHECK(stage >= 1, "replicas that divide an optimizer's state which isn't sharded");
    placement.optimizer.merge(replica_axes(placement));
  }
  return placement;
}

Placement placement_of(int stage) {
  return placement_of(stage, stage >= 2 ? GradSync::kEveryMicroStep : GradSync::kBoundary);
}

Placement placement_of_rank(const Placement& placement, const Mesh& mesh, int rank) {
  Placement own = placement;
  if (mesh.num_owners() == 0) return own;
  SHERD_CHECK(placement.optimizer == placement.group && placement.boxes.empty(),
              "owners of state that isn't sharded, or of boxes");
  own.role = mesh.is_owner(rank) ? Role::kOwner : Role::kWorker;
  own.keeps_slices = placement.parameters_sharded();
  if (own.role == Role::kOwner) {
    own.group = own.gradients = own.optimizer = {std::string(kOwnerAxis)};
    own.parameters = {};
  } else {
    own.gradients = own.grad_sync == GradSync::kEveryMicroStep ? own.group : AxisSet();
  }
  return own;
}

AxisSet replica_axes(const Placement& placement) {
  if (placement.role == Role::kOwner) return {};
  AxisSet axes = token_axes();
  for (const AxisSet* others : {&placement.group, &placement.boxes}) {
    for (const std::string& axis : *others) axes.erase(axis);
  }
  if (placement.replicas_apart) axes.erase(std::string(kReplicateAxis));
  return axes;
}

AxisSet slice_axes(const Placement& placement) {
  AxisSet axes = placement.optimizer;
  axes.insert(placement.group.begin(), placement.group.end());
  return axes;
}

int slice_of(const Mesh& mesh, int rank, const Placement& placement) {
  AxisSet within_part = slice_axes(placement);
  for (const std::string& axis : placement.group) within_part.erase(axis);
  return mesh.index_in_group(rank, placement.group) * mesh.degree(within_part) +
         mesh.index_in_group(rank, within_part);
}

AxisSet copy_axes(const Mesh& mesh, const Placement& placement) {
  if (placement.role == Role::kOwner) return {};
  AxisSet axes = mesh.other_axes(slice_axes(placement));
  axes.erase(std::string(kPipelineAxis));
  axes.erase(std::string(kTensorAxis));
  for (const std::string& axis : placement.boxes) axes.erase(axis);
  if (placement.replicas_apart) axes.erase(std::string(kReplicateAxis));
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
