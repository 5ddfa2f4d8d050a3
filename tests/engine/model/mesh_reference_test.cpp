// Runs of two small models on three meshes of tensor, sequence and context ranks are PyTorch's: see reference_run.h.

#include "tests/engine/model/reference_run.h"

namespace sherd::testing {
namespace {

class MeshReference : public ::testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Meshes, MeshReference, ::testing::Values(0, 1, 2));

TEST_P(MeshReference, LossesGradientsOfEveryStepAndWeightsArePyTorchs) {
  expect_runs_of_pytorch(reference_meshes()[static_cast<std::size_t>(GetParam())],
                         RunShape::Place::kHost);
}

// The same numbers on one rank: what differs on a mesh is the mesh's doing.
TEST(MeshReferenceAlone, OneRankHasThemToo) {
  expect_runs_of_pytorch({.name = "one rank", .micro_steps = 2}, RunShape::Place::kHost);
}

}  // namespace
}  // namespace sherd::testing
