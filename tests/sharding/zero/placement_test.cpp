#include "sharding/zero/placement.h"

#include <gtest/gtest.h>

namespace sherd::sharding {
namespace {

struct Row {
  int stage;
  GradSync grad_sync;
  bool optimizer, gradients, parameters;
};

// ZeRO paper, arXiv:1910.02054 §5: P_os, P_os+g, P_os+g+p; gradients kept until the boundary are
// whole whatever the stage.
constexpr Row kRows[] = {
    {0, GradSync::kBoundary, false, false, false},
    {1, GradSync::kBoundary, true, false, false},
    {2, GradSync::kBoundary, true, false, false},
    {3, GradSync::kBoundary, true, false, true},
    {0, GradSync::kEveryMicroStep, false, false, false},
    {1, GradSync::kEveryMicroStep, true, false, false},
    {2, GradSync::kEveryMicroStep, true, true, false},
    {3, GradSync::kEveryMicroStep, true, true, true},
};

TEST(Placement, AStageIsARowAndTheBoundaryKeepsGradientsWhole) {
  for (const Row& row : kRows) {
    const Placement placement = placement_of(row.stage, row.grad_sync);
    EXPECT_EQ(placement.optimizer_sharded(), row.optimizer) << row.stage;
    EXPECT_EQ(placement.gradients_sharded(), row.gradients) << row.stage;
    EXPECT_EQ(placement.parameters_sharded(), row.parameters) << row.stage;
    EXPECT_EQ(placement.grad_sync, row.grad_sync) << row.stage;
  }
}

TEST(Placement, TheTableHasEachStagesUsualSync) {
  EXPECT_EQ(placement_of(0).grad_sync, GradSync::kBoundary);
  EXPECT_EQ(placement_of(1).grad_sync, GradSync::kBoundary);
  EXPECT_EQ(placement_of(2).grad_sync, GradSync::kEveryMicroStep);
  EXPECT_EQ(placement_of(3).grad_sync, GradSync::kEveryMicroStep);
}

}  // namespace
}  // namespace sherd::sharding
