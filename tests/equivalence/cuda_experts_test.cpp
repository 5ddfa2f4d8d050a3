// Mixtures of experts on a GPU. Labelled `cuda`: without one each test says so and is skipped.
#include <gtest/gtest.h>

#include "tests/support/models/model_forms.h"
#include "tests/support/runs/training_harness.h"

namespace sherd::testing {
namespace {

using Place = RunShape::Place;

class CudaExpertRun : public ::testing::Test {
 protected:
  void SetUp() override {
    const CudaSystem system = cuda_system();
    if (!system.problem.empty()) GTEST_SKIP() << "no GPU: " << system.problem;
  }
};

engine::TrainingOptions training_of(const model::ModelShape& shape, DType dtype) {
  model::ModelShape own = shape;
  own.dtype = dtype;
  own.dropout = 0.0;
  if (dtype != DType::kF32) {  // what cuDNN's attention takes
    own.query_heads = 3;
    own.kv_heads = 1;
  }
  engine::TrainingOptions options = tiny_training(own, 1.0f);
  options.precision = {dtype, DType::kF32, DType::kF32};
  return options;
}

RunShape on_gpu(int world, int stage) {
  return {.world_size = world, .stage = stage, .place = Place::kGpu};
}

// `train` also compares every phase's memory with the plan, and the arena is all that is taken.
TEST_F(CudaExpertRun, StagesWorldsAndRecomputeAgreeBitForBit) {
  for (const ModelForm& form : expert_forms()) {
    SCOPED_TRACE(form.name);
    engine::TrainingOptions options = training_of(form.shape, DType::kF32);
    RunShape alone = on_gpu(1, 0);
    alone.num_micro_steps = 2;
    const Outcome expected = train(options, alone, 3);
    int recompute = 0;
    for (int stage = 0; stage <= 3; ++stage) {
      options.model.recompute = static_cast<model::Recompute>(recompute++ % 3);
      EXPECT_EQ(difference(train(options, on_gpu(2, stage), 3), expected), "") << "stage " << stage;
    }
  }
}

TEST_F(CudaExpertRun, LossesFollowTheCpus) {
  for (const ModelForm& form : expert_forms()) {
    SCOPED_TRACE(form.name);
    const engine::TrainingOptions options = training_of(form.shape, DType::kF32);
    const Outcome cpu = train(options, {.world_size = 2, .stage = 2}, 5);
    const Outcome gpu = train(options, on_gpu(2, 2), 5);
    for (std::size_t step = 0; step < cpu.losses.size(); ++step) {
      EXPECT_NEAR(gpu.losses[step], cpu.losses[step], 2e-3) << step;
    }
  }
}

TEST_F(CudaExpertRun, StagesAgreeAndFollowTheCpuIn16Bits) {
  const model::ModelShape shape = shape_named(expert_forms(), "experts");
  for (const auto scope :
       {kernels::BalanceScope::kSequence, kernels::BalanceScope::kPreviousStep}) {
    engine::TrainingOptions options = training_of(shape, DType::kBF16);
    options.model.moe.scope = scope;
    options.model.moe.correction_bias = true;
    options.model.moe.bias_update_rate = 0.01;
    const Outcome cpu = train(options, {.world_size = 2, .stage = 2}, 5);
    const Outcome gpu = train(options, on_gpu(2, 0), 5);
    for (std::size_t step = 0; step < cpu.losses.size(); ++step) {
      EXPECT_NEAR(gpu.losses[step], cpu.losses[step], 5e-2) << step;
    }
    EXPECT_EQ(difference(train(options, on_gpu(2, 3), 5), gpu), "");
  }
}

// Rounds of one piece give the bits of one round.
TEST_F(CudaExpertRun, ABufferOfFewRowsChangesNoBit) {
  engine::TrainingOptions options =
      training_of(shape_named(expert_forms(), "experts"), DType::kF32);
  const Outcome whole = train(options, on_gpu(1, 0), 2);
  options.model.moe.buffer_rows = 1;
  EXPECT_EQ(difference(train(options, on_gpu(1, 0), 2), whole), "");
}

}  // namespace
}  // namespace sherd::testing
