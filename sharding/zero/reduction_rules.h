/// Rules that follow from a unit's placement for its gradients. The plan of a reduction
/// (reduction_plan.cpp) and the reduction itself share them.
#pragma once

#include "sharding/zero/unit.h"

namespace sherd::sharding {

inline bool same_type(const UnitPlan& unit) {
  return unit.precision.reduce == unit.precision.accumulate;
}
inline bool at_boundary(const UnitPlan& unit) {
  return unit.placement.grad_sync == GradSync::kBoundary;
}
/// Reductions of the unit's gradient in a step, if it is reduced in every micro-step.
inline int num_reductions(const UnitPlan& unit, int num_micro_steps) {
  return num_micro_steps * unit.num_links;
}
inline bool in_groups(const UnitPlan& unit) {
  return unit.placement.batch_groups > unit.num_replicas;
}
// Otherwise the only micro-step writes the unsharded accumulator.
inline bool needs_slot(const UnitPlan& unit, int num_micro_steps) {
  return unit.placement.has_gradients && unit.trains() && !unit.is_owners() &&
         (unit.placement.gradients_sharded() || num_reductions(unit, num_micro_steps) > 1 ||
          !same_type(unit) || in_groups(unit));
}
// Whether one call can do everything: reduce, and give every rank the whole sum.
inline bool all_at_once(const UnitPlan& unit, int num_micro_steps) {
  return !unit.placement.optimizer_sharded() && unit.num_replicas == 1 && !unit.reduces_blocks() &&
         !unit.compressed_sum && (at_boundary(unit) || !needs_slot(unit, num_micro_steps));
}

}  // namespace sherd::sharding
