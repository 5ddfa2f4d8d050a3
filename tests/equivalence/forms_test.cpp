// The equality ladder for models of every form (tests/support/models/model_forms.h): stages, worlds, micro-
// steps and recompute change no bit, in every precision. `train` compares planned with counted
// bytes.

#include <gtest/gtest.h>

#include "tests/support/models/model_forms.h"
#include "tests/support/runs/training_harness.h"

namespace sherd::testing {
namespace {

class FormsLadder : public ::testing::TestWithParam<ModelForm> {};
INSTANTIATE_TEST_SUITE_P(Forms, FormsLadder, ::testing::ValuesIn(forms_on_cpus()),
                         [](const auto& info) { return info.param.name; });

TEST_P(FormsLadder, StagesAgreeOnOneToFourRanks) {
  const auto options = tiny_training(GetParam().shape);
  for (int world = 1; world <= 4; ++world) {
    const RunShape first{.world_size = world, .num_micro_steps = world % 2 + 1};
    const Outcome stage0 = train(options, first, 3);
    for (int stage = 1; stage <= 3; ++stage) {
      RunShape setup = first;
      setup.stage = stage;
      setup.prefetch_depth = stage;
      setup.threads_per_rank = world % 3 + 1;
      setup.delay_seed = static_cast<std::uint64_t>(stage * 10 + world);
      EXPECT_EQ(difference(stage0, train(options, setup, 3)), "") << name_of(setup);
    }
  }
}

TEST_P(FormsLadder, OneRankWithFourMicroStepsIsFourRanksWithOne) {
  const auto options = tiny_training(GetParam().shape);
  const Outcome one = train(options, {.world_size = 1, .num_micro_steps = 4}, 2);
  Outcome four = train(options, {.world_size = 4, .stage = 3}, 2);
  four.grad_norms = one.grad_norms;  // added in another order
  EXPECT_EQ(difference(one, four), "");
}

TEST_P(FormsLadder, RecomputeChangesNoBitInAnyPrecision) {
  for (const DType dtype : {DType::kF32, DType::kBF16, DType::kF16}) {
    auto options = tiny_training(GetParam().shape);
    options.model.dtype = dtype;
    options.precision.parameters = dtype;
    if (dtype == DType::kF16) {
      options.loss_scaling.mode = optim::LossScaling::Mode::kDynamic;
      options.loss_scaling.initial_scale_power = 8;
    }
    const Outcome none = train(options, {.world_size = 2, .stage = 3}, 3);
    for (const auto mode : {model::Recompute::kSelective, model::Recompute::kFull}) {
      options.model.recompute = mode;
      EXPECT_EQ(difference(none, train(options, {.world_size = 2, .stage = 2}, 3)), "")
          << name_of(dtype) << ", recompute " << static_cast<int>(mode);
    }
  }
}

}  // namespace
}  // namespace sherd::testing
