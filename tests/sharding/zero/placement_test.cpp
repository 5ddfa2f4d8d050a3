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

// Ranks 0 to 5 are (replica, shard) = (0, 0), (0, 1), (0, 2), (1, 0), (1, 1), (1, 2).
TEST(Placement, TheSlicesOfAPartAreThoseOfTheReplicasThatDivideIt) {
  const Mesh mesh({{"replicate", 2}, {"shard", 3}});
  const Placement copies = placement_of(3, GradSync::kEveryMicroStep);
  const Placement divided = placement_of(3, GradSync::kEveryMicroStep, Replicas::kDivideOptimizer);
  EXPECT_EQ(divided.parameters, copies.parameters);
  EXPECT_EQ(divided.gradients, copies.gradients);
  EXPECT_EQ(divided.optimizer, (AxisSet{"context", "expert", "replicate", "shard"}));
  std::vector<int> of_copies, of_divided;
  for (int rank = 0; rank < 6; ++rank) {
    of_copies.push_back(slice_of(mesh, rank, copies));
    of_divided.push_back(slice_of(mesh, rank, divided));
    EXPECT_TRUE(contributes_slice(mesh, rank, divided));
    EXPECT_EQ(saved_range(mesh, rank, divided, 64), (SliceRange{0, 64}));
    EXPECT_EQ(contributes_slice(mesh, rank, copies), rank < 3);
  }
  EXPECT_EQ(of_copies, (std::vector<int>{0, 1, 2, 0, 1, 2}));
  EXPECT_EQ(of_divided, (std::vector<int>{0, 2, 4, 1, 3, 5}));
}

}  // namespace
}  // namespace sherd::sharding
