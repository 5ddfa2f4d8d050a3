// Pipelines on a GPU that their ranks share: losses, norms and weights are bit-identical to one rank on the same
// device, and each rank's memory is as planned.

#include <gtest/gtest.h>

#include "tests/support/devices/gpu_pipelines.h"
#include "tests/support/runs/small_run.h"

namespace sherd::testing {
namespace {

using schedule::Order;
using Place = RunShape::Place;

class CudaPipeline : public ::testing::Test {
 protected:
  void SetUp() override {
    const CudaSystem system = cuda_system();
    if (!system.problem.empty()) GTEST_SKIP() << "no GPU: " << system.problem;
  }
};

TEST_F(CudaPipeline, EveryScheduleHasTheBitsOfOneRank) {
  for (const GpuPipeline& each : gpu_pipelines()) expect_bits_of_one_rank(each, Place::kGpu);
}

TEST_F(CudaPipeline, RecomputedActivationsHaveThemToo) {
  expect_bits_of_one_rank({.order = Order::kZbH1, .recompute = model::Recompute::kSelective},
                          Place::kGpu);
  expect_bits_of_one_rank({.order = Order::kZbV, .recompute = model::Recompute::kFull},
                          Place::kGpu);
}

// A block's kernels read and write other slots for each micro-batch under way.
TEST_F(CudaPipeline, GraphsChangeNoBit) {
  expect_bits_of_one_rank({.order = Order::kGPipe, .micro_batches = 3, .steps = 5, .graphs = true},
                          Place::kGpu);
}

// The same copy of the matrix on both ranks, whose gradients are added once per step.
TEST_F(CudaPipeline, TiedEndsHaveTheSameBitsOnOneRankAsOnTwo) {
  const GpuPipeline on_two{.micro_batches = 3, .stage = 1, .tied = true};
  GpuPipeline on_one = on_two;
  on_one.order = Order::kZbV;
  EXPECT_EQ(difference(train_on_gpus(on_one, Place::kGpu), train_on_gpus(on_two, Place::kGpu)), "");
}

TEST_F(CudaPipeline, ARunFromARecipeHasTheNumbersOfOneRankEvaluationsIncluded) {
  const test::TempFolder folder;
  write_data(folder);
  TrainingRun run{.precision = "mixed_precision: {param_dtype: f32}",
                  .optimizer = "adamw",
                  .accumulation = "gradient_accumulation_steps: 3"};
  run.machine = engine::cuda_machine(1, {.share_device = true});
  train_in(folder, "one", run);
  run.mesh = "pipeline_parallel_degree: 2";
  run.machine = engine::cuda_machine(2, {.share_device = true});
  train_in(folder, "two", run);
  EXPECT_EQ(numbers_of(folder, "two"), numbers_of(folder, "one"));
  EXPECT_EQ(final_state(folder, "two"), final_state(folder, "one"));
}

}  // namespace
}  // namespace sherd::testing
