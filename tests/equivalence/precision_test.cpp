// The ladder in every precision: stages agree bit for bit whatever the types, recomputing changes
// nothing, and an overflow on one rank makes all ranks skip.

#include <gtest/gtest.h>

#include <cmath>

#include "sharding/zero/gradient_reduction.h"
#include "tests/support/runs/training_harness.h"

namespace sherd::testing {
namespace {

using sharding::GradSync;

constexpr int kSteps = 3;

struct Types {
  const char* name;
  sharding::Precision precision;
  optim::MomentType moment_type{};
};

const Types kTypes[] = {
    {"f32", {}},
    {"bf16", {DType::kBF16, DType::kF32, DType::kF32}},
    {"f16", {DType::kF16, DType::kF32, DType::kF32}},
    {"bf16, gradients too", {DType::kBF16, DType::kBF16, DType::kBF16}},
    {"bf16 with bf16 moments, rounded at random",
     {DType::kBF16, DType::kF32, DType::kF32},
     {DType::kBF16, true, 7}},
    {"f16, gradients too", {DType::kF16, DType::kF16, DType::kF16}},
};

engine::TrainingOptions training_in(const Types& types, bool tied = true) {
  engine::TrainingOptions options = tiny_training(tiny_model(tied));
  options.precision = types.precision;
  options.model.dtype = types.precision.parameters;
  options.optimizer.moment_type = types.moment_type;
  if (types.precision.parameters == DType::kF16) {
    options.loss_scaling.mode = optim::LossScaling::Mode::kDynamic;
    options.loss_scaling.initial_scale_power = 8;
  }
  return options;
}

TEST(PrecisionLadder, StagesAgreeBitForBitInEveryPrecision) {
  for (const Types& types : kTypes) {
    for (const int num_micro_steps : {1, 3}) {
      const RunShape first{.world_size = 3, .num_micro_steps = num_micro_steps};
      const auto options = training_in(types, num_micro_steps == 1);
      const Outcome stage0 = train(options, first, kSteps);
      for (int stage = 1; stage <= 3; ++stage) {
        RunShape shape = first;
        shape.stage = stage;
        shape.threads_per_rank = 1 + stage % 2;
        shape.delay_seed = static_cast<std::uint64_t>(stage);
        EXPECT_EQ(difference(stage0, train(options, shape, kSteps)), "")
            << types.name << ", " << name_of(shape);
      }
    }
  }
}

TEST(PrecisionLadder, GradientsAccumulatedInAnotherTypeThanReducedAgreeAcrossStages) {
  for (const auto& [reduce, accumulate] :
       {std::pair(DType::kF32, DType::kBF16), std::pair(DType::kBF16, DType::kF32)}) {
    const Types types{"", {DType::kBF16, reduce, accumulate}};
    const RunShape first{.world_size = 2, .num_micro_steps = 2};
    const Outcome stage0 = train(training_in(types), first, kSteps);
    for (int stage = 1; stage <= 3; ++stage) {
      RunShape shape = first;
      shape.stage = stage;
      EXPECT_EQ(difference(stage0, train(training_in(types), shape, kSteps)), "")
          << "reduced in " << name_of(reduce) << ", " << name_of(shape);
    }
  }
}

TEST(PrecisionLadder, RecomputingChangesNoBitInAnyPrecisionDropoutIncluded) {
  for (const Types& types : kTypes) {
    for (const bool tied : {false, true}) {
      auto options = training_in(types, tied);
      const RunShape shape{.world_size = 2, .stage = tied ? 3 : 1, .threads_per_rank = 2};
      ASSERT_GT(options.model.dropout, 0.0);
      const Outcome none = train(options, shape, kSteps);
      for (const model::Recompute recompute :
           {model::Recompute::kSelective, model::Recompute::kFull}) {
        options.model.recompute = recompute;
        EXPECT_EQ(difference(none, train(options, shape, kSteps)), "")
            << types.name << (recompute == model::Recompute::kFull ? ", full" : ", selective");
      }
    }
  }
}

// Types matter: the ladder above would be empty if they didn't reach the computation.
TEST(PrecisionLadder, TypesChangeWhatIsComputedALittle) {
  const RunShape shape{.world_size = 2, .stage = 3};
  const Outcome f32 = train(training_in(kTypes[0]), shape, kSteps);
  for (const Types& types : kTypes) {
    if (types.name == kTypes[0].name) continue;
    const Outcome other = train(training_in(types), shape, kSteps);
    EXPECT_NE(difference(f32, other), "") << types.name;
    for (int step = 0; step < kSteps; ++step) {
      EXPECT_NEAR(f32.losses[step], other.losses[step], 0.1) << types.name;
    }
  }
}

// Rounding at random is addressed by the element, not by where it lies.
TEST(PrecisionLadder, RandomRoundingOfMomentsSurvivesResharding) {
  const Types& types = kTypes[4];
  ASSERT_TRUE(types.moment_type.stochastic);
  const Outcome one = train(training_in(types), {.world_size = 1, .num_micro_steps = 4}, kSteps);
  const Outcome four = train(training_in(types), {.world_size = 4, .stage = 3}, kSteps);
  EXPECT_EQ(difference(one, four), "");
}

const optim::OptimizerType kOptimizers[] = {
    optim::OptimizerType::kAdamW, optim::OptimizerType::kAdam,     optim::OptimizerType::kSgd,
    optim::OptimizerType::kLion,  optim::OptimizerType::kLamb,     optim::OptimizerType::kLars,
    optim::OptimizerType::kMuon,  optim::OptimizerType::kAdafactor};

engine::TrainingOptions training_with(optim::OptimizerType type, bool tied) {
  engine::TrainingOptions options = tiny_training(tiny_model(tied));
  options.optimizer.type = type;
  options.optimizer.momentum = 0.9f;
  options.optimizer.trust_coefficient = 0.1f;
  return options;
}

TEST(OptimizerLadder, EveryOptimizerAgreesAcrossStagesBitForBit) {
  for (const optim::OptimizerType type : kOptimizers) {
    for (int world = 1; world <= 4; ++world) {
      const auto options = training_with(type, world % 2 == 0);
      const Outcome stage0 = train(options, {.world_size = world, .stage = 0}, kSteps);
      for (int stage = 1; stage <= 3; ++stage) {
        const RunShape shape{.world_size = world,
                             .stage = stage,
                             .threads_per_rank = 1 + stage % 2,
                             .delay_seed = static_cast<std::uint64_t>(stage % 2)};
        EXPECT_EQ(difference(stage0, train(options, shape, kSteps)), "")
            << "optimizer " << static_cast<int>(type) << ", " << name_of(shape);
      }
    }
  }
}

// At stages 0 to 2 the parameters must be rounded after an update, by the optimizer itself or by the publishing.
TEST(OptimizerLadder, EveryOptimizerAgreesAcrossStagesInBf16) {
  for (const optim::OptimizerType type : kOptimizers) {
    engine::TrainingOptions options = training_in(kTypes[1]);
    options.optimizer = training_with(type, true).optimizer;
    const Outcome gathered = train(options, {.world_size = 2, .stage = 3}, kSteps);
    for (int stage = 0; stage <= 2; ++stage) {
      EXPECT_EQ(difference(gathered, train(options, {.world_size = 2, .stage = stage}, kSteps)), "")
          << "optimizer " << static_cast<int>(type) << ", stage " << stage;
    }
  }
}

// LAMB's and LARS's ratios, too: norms of tensors are exact sums.
TEST(OptimizerLadder, EveryOptimizerOnFourRanksIsTheSingleRanks) {
  for (const optim::OptimizerType type : kOptimizers) {
    const auto options = training_with(type, true);
    const Outcome one = train(options, {.world_size = 1, .num_micro_steps = 4}, kSteps);
    const Outcome four = train(options, {.world_size = 4, .stage = 3}, kSteps);
    EXPECT_EQ(difference(one, four), "") << "optimizer " << static_cast<int>(type);
  }
}

// On tensor ranks, too, of which each forms some of the matrices whole.
TEST(OptimizerLadder, MuonInBf16AgreesAcrossStagesAndRanksBitForBit) {
  engine::TrainingOptions options = training_with(optim::OptimizerType::kMuon, true);
  const RunShape alone{.world_size = 1, .num_micro_steps = 4};
  const Outcome f32 = train(options, alone, kSteps);
  options.optimizer.muon_dtype = DType::kBF16;
  const Outcome one = train(options, alone, kSteps);
  EXPECT_NE(difference(one, f32), "") << "the type is used";
  for (int stage = 0; stage <= 3; ++stage) {
    const RunShape four{.world_size = 4, .stage = stage, .grad_sync = GradSync::kEveryMicroStep};
    EXPECT_EQ(difference(one, train(options, four, kSteps)), "") << name_of(four);
  }
  options.model.ffn_width = 36;  // which two ranks can share
  const Outcome tensor = train(options, {.axes = {{"tensor", 2}}, .num_micro_steps = 4}, kSteps);
  const Outcome sharded = train(
      options, {.axes = {{"shard", 2}, {"tensor", 2}}, .num_micro_steps = 2, .stage = 3}, kSteps);
  EXPECT_EQ(difference(tensor, sharded), "");
}

// A run in which rank `culprit` multiplies its loss beyond f32's range at step 1.
struct OverflowRun {
  Outcome outcome;
  std::vector<engine::StepResult> results;  // of rank 0
  bool all_ranks_agree = true;
};

OverflowRun train_with_overflow(const RunShape& shape, int culprit) {
  auto options = applied(training_in(kTypes[2]), shape);
  options.loss_scaling.hysteresis = 1;
  OverflowRun run;
  run.outcome.parameters = empty_parameters(options.model);
  std::vector<std::vector<bool>> skipped(static_cast<std::size_t>(shape.world_size));
  run_ranks(shape, [&](sharding::Rank& rank) {
    engine::ShardedModel model(options, rank);
    engine::TrainingStep training_step(options, model);
    std::vector<std::int32_t> memory;
    const engine::NextBatch next_batch = tokens_for(options, rank, memory);
    rank.guard([&] {
      for (int step = 0; step < 4; ++step) {
        model.gradients().inspect = [&](int unit, sharding::UnitEnd, const Tensor& full) {
          if (step == 1 && rank.rank == culprit && unit == model.block_unit(1)) {
            full.as<float>()[3] = INFINITY;
          }
        };
        const engine::StepResult result = training_step.run(step, next_batch);
        skipped[static_cast<std::size_t>(rank.rank)].push_back(result.skipped);
        if (rank.rank == 0) {
          run.results.push_back(result);
          run.outcome.losses.push_back(result.loss);
          run.outcome.grad_norms.push_back(result.skipped ? 0.0f : result.grad_norm);
        }
      }
      collect_parameters(model, run.outcome.parameters);
    });
  });
  for (const auto& of_rank : skipped) run.all_ranks_agree &= of_rank == skipped[0];
  return run;
}

TEST(LossScalingLadder, AnOverflowOnOneRankOfFourIsSkippedByAllAndTrainingGoesOn) {
  Outcome stage0;
  for (int stage = 0; stage <= 3; ++stage) {
    for (const std::uint64_t delay_seed : {0, 9}) {
      const RunShape shape{.world_size = 4, .stage = stage, .delay_seed = delay_seed};
      const OverflowRun run = train_with_overflow(shape, 2);
      EXPECT_TRUE(run.all_ranks_agree) << name_of(shape);
      ASSERT_EQ(run.results.size(), 4u);
      EXPECT_FALSE(run.results[0].skipped);
      EXPECT_TRUE(run.results[1].skipped);
      EXPECT_FALSE(run.results[2].skipped);
      EXPECT_EQ(run.results[1].loss_scale, 256.0);
      EXPECT_EQ(run.results[2].loss_scale, 128.0);
      EXPECT_NE(run.results[1].overflow.find("block.1."), std::string::npos)
          << run.results[1].overflow;
      EXPECT_NE(run.results[1].overflow.find("slice owner rank 0"), std::string::npos)
          << run.results[1].overflow;
      if (stage == 0 && delay_seed == 0) stage0 = run.outcome;
      EXPECT_EQ(difference(stage0, run.outcome), "") << name_of(shape);
    }
  }
}

TEST(LossScalingLadderSmall, VerdictsAgreeOnTwoRanksUnderDelays) {
  for (const int stage : {1, 3}) {
    const OverflowRun run =
        train_with_overflow({.world_size = 2, .stage = stage, .delay_seed = 3}, 1);
    EXPECT_TRUE(run.all_ranks_agree);
    EXPECT_TRUE(run.results[1].skipped);
  }
}

}  // namespace
}  // namespace sherd::testing
