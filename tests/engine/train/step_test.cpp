// What a step does with the gradient's norm, the loss scale and a skipped step, by algebra: the
// ladder compares steps with themselves and can't see a factor that is wrong everywhere.

#include <gtest/gtest.h>

#include <cmath>

#include "sharding/zero/gradient_reduction.h"
#include "tests/support/models/model_values.h"
#include "tests/support/runs/training_harness.h"

namespace sherd::testing {
namespace {

using optim::LossScaling;
using optim::OptimizerType;

constexpr OptimizerType kOptimizers[] = {
    OptimizerType::kAdamW, OptimizerType::kAdam,      OptimizerType::kSgd,
    OptimizerType::kLion,  OptimizerType::kLamb,      OptimizerType::kLars,
    OptimizerType::kMuon,  OptimizerType::kAdafactor, OptimizerType::kDion};

// One of each stage, alone and among ranks, with and without accumulation.
const RunShape kShapes[] = {{.world_size = 1, .num_micro_steps = 2, .stage = 0},
                            {.world_size = 2, .stage = 1},
                            {.world_size = 3, .num_micro_steps = 2, .stage = 2},
                            {.world_size = 2, .num_micro_steps = 3, .stage = 3}};

engine::TrainingOptions plain_sgd(double lr, float max_norm = 0.0f) {
  engine::TrainingOptions options = tiny_training(tiny_model(true), max_norm);
  options.optimizer.type = OptimizerType::kSgd;
  options.optimizer.decay = {};
  options.lr_schedule.lr = lr;
  return options;
}

engine::TrainingOptions with_loss_scale(engine::TrainingOptions options, int power) {
  options.loss_scaling.mode = LossScaling::Mode::kStatic;
  options.loss_scaling.initial_scale_power = power;
  return options;
}

double norm_of(const ValuesByName& values) {
  double sum = 0.0;
  for (const auto& [name, of_tensor] : values) {
    for (const float value : of_tensor) sum += double{value} * double{value};
  }
  return std::sqrt(sum);
}

ValuesByName difference_of(const ValuesByName& a, const ValuesByName& b) {
  ValuesByName result = a;
  for (auto& [name, values] : result) {
    for (std::size_t i = 0; i < values.size(); ++i) values[i] -= b.at(name)[i];
  }
  return result;
}

// SGD's step is lr times the gradient, so with a rate of 1 the step shows what it was taken by.
TEST(Step, OneSgdStepWithAMaxNormBelowTheNormMovesTheParametersByTheRateTimesThatNorm) {
  for (const RunShape& shape : kShapes) {
    const Outcome before = train(plain_sgd(0.0), shape, 1);
    const Outcome unclipped = train(plain_sgd(1.0), shape, 1);
    const ValuesByName gradient = difference_of(before.parameters, unclipped.parameters);
    for (const double fraction : {0.9, 0.1}) {
      const double max_norm = fraction * norm_of(gradient);
      for (const double lr : {1.0, 0.25}) {
        const auto options = plain_sgd(lr, static_cast<float>(max_norm));
        const Outcome clipped = train(options, shape, 1);
        const ValuesByName moved = difference_of(before.parameters, clipped.parameters);
        // Parameters of order 0.2 are rounded where they are stored: 1e-8 of each.
        EXPECT_NEAR(norm_of(moved), lr * max_norm, 2e-6) << name_of(shape);
        for (const auto& [name, values] : moved) {
          for (std::size_t i = 0; i < values.size(); ++i) {
            ASSERT_NEAR(values[i], lr * fraction * gradient.at(name)[i], 1e-6)
                << name << ", " << name_of(shape);
          }
        }
      }
    }
  }
}

TEST(Step, AMaxNormAboveTheNormChangesNoBit) {
  for (const RunShape& shape : kShapes) {
    const Outcome unclipped = train(plain_sgd(0.1), shape, 2);
    const float above = 1.5f * std::max(unclipped.grad_norms[0], unclipped.grad_norms[1]);
    EXPECT_EQ(difference(unclipped, train(plain_sgd(0.1, above), shape, 2)), "") << name_of(shape);
  }
}

TEST(Step, TheReportedNormIsTheGradientsWithoutLossScaleAndBeforeClipping) {
  for (const RunShape& shape : kShapes) {
    const Outcome before = train(plain_sgd(0.0), shape, 1);
    const Outcome after = train(plain_sgd(1.0), shape, 1);
    const double norm = norm_of(difference_of(before.parameters, after.parameters));
    for (const float max_norm : {0.0f, 0.2f * static_cast<float>(norm)}) {
      for (const int power : {0, 3, 16}) {
        const Outcome run = train(with_loss_scale(plain_sgd(1.0, max_norm), power), shape, 1);
        EXPECT_NEAR(run.grad_norms[0], norm, 2e-6 * norm) << name_of(shape) << ", 2^" << power;
        EXPECT_EQ(run.grad_norms[0], after.grad_norms[0]);
      }
    }
  }
}

// Powers of two only shift exponents, in f32 and in the f64 sums of squares.
TEST(Step, AStaticLossScaleOfAPowerOfTwoChangesNoBitClippingActiveOrNot) {
  int number = 0;
  for (const OptimizerType type : kOptimizers) {
    for (const bool clips : {false, true}) {
      const RunShape& shape = kShapes[number++ % std::size(kShapes)];
      engine::TrainingOptions options = tiny_training(tiny_model(number % 3 == 0));
      options.optimizer.type = type;
      options.optimizer.momentum = 0.9f;
      const Outcome unclipped = train(options, shape, 3);
      if (clips) options.max_norm = 0.4f * unclipped.grad_norms[0];
      const Outcome plain = clips ? train(options, shape, 3) : unclipped;
      ASSERT_EQ(difference(plain, unclipped) != "", clips) << "whether clipping is active";
      for (const int power : {1, 10, 24}) {
        EXPECT_EQ(difference(plain, train(with_loss_scale(options, power), shape, 3)), "")
            << "optimizer " << static_cast<int>(type) << (clips ? ", clipped" : "") << ", 2^"
            << power << ", " << name_of(shape);
      }
    }
  }
}

// Steps 0, 1, ... over the batches in `batches`. A batch below 0 is batch 0 with a gradient that
// isn't finite on the last rank.
Outcome train_on(const engine::TrainingOptions& options, const RunShape& shape,
                 const std::vector<int>& batches, std::vector<double>* scales = nullptr,
                 std::vector<double>* rates = nullptr) {
  Outcome outcome;
  outcome.parameters = empty_parameters(options.model);
  run_ranks(shape, [&](sharding::Rank& rank) {
    engine::ShardedModel model(options, rank);
    engine::TrainingStep training_step(options, model);
    std::vector<std::int32_t> memory;
    const engine::NextBatch tokens = tokens_for(options, rank, memory);
    rank.guard([&] {
      for (int step = 0; step < std::ssize(batches); ++step) {
        const int batch = batches[static_cast<std::size_t>(step)];
        const bool breaks = batch < 0 && rank.rank == rank.world_size() - 1;
        model.gradients().inspect = [&, breaks](int unit, sharding::UnitEnd, const Tensor& full) {
          if (breaks && unit == model.block_unit(1)) full.as<float>()[3] = INFINITY;
        };
        const engine::StepResult result = training_step.run(
            step,
            [&](std::int64_t, std::int64_t micro) { return tokens(std::max(batch, 0), micro); });
        EXPECT_EQ(result.skipped, batch < 0);
        if (rank.rank == 0 && scales != nullptr) scales->push_back(result.loss_scale);
        if (rank.rank == 0 && rates != nullptr) rates->push_back(result.lr);
        if (rank.rank != 0 || result.skipped) continue;
        outcome.losses.push_back(result.loss);
        outcome.grad_norms.push_back(result.grad_norm);
      }
      collect_parameters(model, outcome.parameters);
    });
  });
  return outcome;
}

// Without dropout, and at a constant rate, nothing may depend on the step's number: Adam's t, and
// the bits that round moments at random, count updates.
TEST(Step, AfterSkippedStepsTrainingIsThatOfTheOtherBatchesAlone) {
  int number = 0;
  for (const OptimizerType type : kOptimizers) {
    for (const DType moments : {DType::kF32, DType::kBF16}) {
      if (type == OptimizerType::kDion && moments != DType::kF32) continue;
      const RunShape& shape = kShapes[number++ % std::size(kShapes)];
      engine::TrainingOptions options = tiny_training(tiny_model(false), 0.5f);
      options.model.dropout = 0.0;
      options.optimizer.type = type;
      options.optimizer.momentum = 0.9f;
      options.optimizer.moment_type = {moments, moments == DType::kBF16, 7};
      options.loss_scaling.mode = LossScaling::Mode::kDynamic;
      options.loss_scaling.initial_scale_power = 6;
      options.loss_scaling.hysteresis = 1;
      options = applied(options, shape);
      const Outcome skipping = train_on(options, shape, {0, 1, -1, -1, 2, 3});
      const Outcome without = train_on(options, shape, {0, 1, 2, 3});
      EXPECT_EQ(difference(skipping, without), "")
          << "optimizer " << static_cast<int>(type) << ", " << name_of(moments) << " moments, "
          << name_of(shape);
    }
  }
}

TEST(Step, ADynamicLossScaleGrowsAfterItsIntervalOfCleanStepsAndHalvesWithASkippedOne) {
  const RunShape shape{.world_size = 2, .stage = 2};
  engine::TrainingOptions options = applied(plain_sgd(0.01), shape);
  options.loss_scaling.mode = LossScaling::Mode::kDynamic;
  options.loss_scaling.initial_scale_power = 3;
  options.loss_scaling.growth_interval = 2;
  options.loss_scaling.hysteresis = 1;
  std::vector<double> scales;
  train_on(options, shape, {0, 1, 2, -1, 3, 4, 5}, &scales);
  EXPECT_EQ(scales, (std::vector<double>{8, 8, 16, 16, 8, 8, 16}));
}

TEST(Step, EveryStepDrawsItsOwnDropout) {
  const RunShape shape{.world_size = 2, .stage = 3};
  engine::TrainingOptions options = applied(plain_sgd(0.0), shape);
  for (const double dropout : {0.0, 0.1}) {
    options.model.dropout = dropout;
    const Outcome outcome = train_on(options, shape, {0, 0});
    EXPECT_EQ(outcome.losses[0] == outcome.losses[1], dropout == 0.0);
  }
}

TEST(Step, TheReportedRateIsTheSchedulesOfThisStep) {
  const RunShape shape{.world_size = 1};
  engine::TrainingOptions options = applied(plain_sgd(1.0), shape);
  options.lr_schedule.warmup_steps = 3;
  std::vector<double> rates;
  train_on(options, shape, {0, 1, 2, 3, 4}, nullptr, &rates);
  EXPECT_EQ(rates, (std::vector<double>{0.25, 0.5, 0.75, 1.0, 1.0}));
}

}  // namespace
}  // namespace sherd::testing
