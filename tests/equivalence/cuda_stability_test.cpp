// z-loss, largest attention scores and QK-clip on a GPU: the bits of one stage are those of the others, graphs change
// none, and weights follow the CPU's.
#include <gtest/gtest.h>

#include <cmath>

#include "core/cuda_device.h"
#include "tests/support/runs/training_harness.h"

namespace sherd::testing {
namespace {

using Place = RunShape::Place;

class CudaStability : public ::testing::Test {
 protected:
  void SetUp() override {
    const CudaSystem system = cuda_system();
    if (!system.problem.empty()) GTEST_SKIP() << "no GPU: " << system.problem;
  }
};

// bf16 heads that cuDNN computes. Scores are about 1, and the clip acts in every step.
engine::TrainingOptions with_all(DType dtype) {
  model::ModelShape shape = tiny_model(false);
  shape.dtype = dtype;
  shape.dropout = 0.0;
  if (dtype != DType::kF32) {
    shape.query_heads = 3;
    shape.kv_heads = 1;
    shape.ffn_width = 40;
  }
  shape.z_loss = 0.5;
  shape.max_attention_logit = true;
  engine::TrainingOptions options = tiny_training(shape, 1.0f);
  options.precision = {dtype, DType::kF32, DType::kF32};
  options.qk_clip_threshold = 1e-3;
  return options;
}

TEST_F(CudaStability, StagesAndGraphsAgreeBitForBit) {
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    const engine::TrainingOptions options = with_all(dtype);
    RunShape setup{.world_size = 2, .num_micro_steps = 2, .place = Place::kGpu};
    const Outcome stage0 = train(options, setup, 3);
    for (setup.stage = 1; setup.stage <= 3; ++setup.stage) {
      EXPECT_EQ(difference(train(options, setup, 3), stage0), "") << name_of(setup);
    }
    setup.stage = 0;
    setup.cuda_graphs = true;
    EXPECT_EQ(difference(train(options, setup, 3), stage0), "") << "with graphs";
  }
}

TEST_F(CudaStability, WeightsFollowTheCpus) {
  engine::TrainingOptions options = with_all(DType::kF32);
  options.optimizer.type = optim::OptimizerType::kSgd;
  const Outcome cpu = train(options, {.num_micro_steps = 2}, 3);
  const Outcome gpu = train(options, {.num_micro_steps = 2, .place = Place::kGpu}, 3);
  for (std::size_t step = 0; step < 3; ++step) {
    EXPECT_NEAR(gpu.losses[step], cpu.losses[step], 1e-4) << step;
    EXPECT_NEAR(gpu.grad_norms[step], cpu.grad_norms[step], 1e-3f * cpu.grad_norms[step]) << step;
  }
  const std::string name = "block.0.attention.qkv.weight";
  const std::vector<float>&a = gpu.parameters.at(name), &b = cpu.parameters.at(name);
  for (std::size_t i = 0; i < a.size(); ++i) ASSERT_NEAR(a[i], b[i], 1e-5f) << i;
  options.qk_clip_threshold = 0.0;
  const Outcome without = train(options, {.num_micro_steps = 2, .place = Place::kGpu}, 3);
  EXPECT_NE(without.parameters.at(name), a) << "the clip acts";
}

TEST_F(CudaStability, ComparingCopiesOfTheWeightsChangesNoBit) {
  engine::TrainingOptions options = with_all(DType::kBF16);
  const RunShape setup{.world_size = 2, .stage = 1, .place = Place::kGpu};
  const Outcome without = train(options, setup, 3);
  options.weight_hash_interval = 1;
  EXPECT_EQ(difference(train(options, setup, 3), without), "");
}

TEST_F(CudaStability, LookingAtScoresChangesNoBit) {
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    engine::TrainingOptions options = with_all(dtype);
    options.qk_clip_threshold = 0.0;
    const RunShape setup{.place = Place::kGpu};
    const Outcome with = train(options, setup, 3);
    options.model.max_attention_logit = false;
    EXPECT_EQ(difference(train(options, setup, 3), with), "");
  }
}

}  // namespace
}  // namespace sherd::testing
