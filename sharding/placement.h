/// Where each kind of state lives. A ZeRO stage (Rajbhandari et al., arXiv:1910.02054 §5) is one
/// row of this table; there is one code path, not one per stage.
///
///   moment                        stage 0        stage 1        stage 2          stage 3
///   sharded at rest               nothing        optimizer      + gradients      + parameters
///   before a unit computes        -              its publish    its publish      all-gather
///   after a unit's backward       accumulate     accumulate     reduce-scatter   reduce-scatter
///   after the last micro-step     all-reduce     reduce-scatter -                -
///   update                        every slice    own slice      own slice        own slice
///   after the update              -              all-gather     all-gather       -
///
/// With `GradSync::kBoundary` at stages 2-3 gradients are kept whole until the last micro-step,
/// which saves communication and costs the memory that those stages would have saved. With
/// `GradSync::kEveryMicroStep` at stages 0-1 gradients are reduced in every micro-step.
#pragma once

#include <array>

namespace sherd::sharding {

enum class GradSync { kEveryMicroStep, kBoundary };

struct Placement {
  bool optimizer_sharded = false;
  bool gradients_sharded = false;
  bool parameters_sharded = false;
  GradSync grad_sync = GradSync::kBoundary;
  bool has_gradients = true;  ///< false: the model is used, not trained
};

inline constexpr std::array<Placement, 4> kStages = {{
    {false, false, false, GradSync::kBoundary},
    {true, false, false, GradSync::kBoundary},
    {true, true, false, GradSync::kEveryMicroStep},
    {true, true, true, GradSync::kEveryMicroStep},
}};

/// The stage's row, with gradients whole where `grad_sync` asks to reduce them only at the end.
constexpr Placement placement_of(int stage, GradSync grad_sync) {
  Placement placement = kStages[static_cast<std::size_t>(stage)];
  placement.grad_sync = grad_sync;
  if (grad_sync == GradSync::kBoundary) placement.gradients_sharded = false;
  return placement;
}

}  // namespace sherd::sharding
