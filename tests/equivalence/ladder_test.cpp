// The equality ladder (docs/reproducibility.md): how a run is cut into ranks, stages, slots and
// threads changes where things are and when they move, and not one bit of what is computed.

#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <tuple>

#include "tests/support/runs/training_harness.h"

namespace sherd::testing {
namespace {

using sharding::GradSync;

constexpr int kSteps = 3;

// Runs with the same key must agree: what they add up, and in which order, is the same.
const Outcome& reference(bool tied, const RunShape& like) {
  using Key = std::tuple<bool, int, int, GradSync>;
  static std::map<Key, Outcome> outcomes;
  const GradSync sync = like.num_micro_steps == 1 ? GradSync::kBoundary : like.grad_sync;
  const auto [it, missing] =
      outcomes.try_emplace(Key{tied, like.world_size, like.num_micro_steps, sync});
  if (missing) {
    it->second = train(tiny_training(tiny_model(tied)),
                       {.world_size = like.world_size,
                        .num_micro_steps = like.num_micro_steps,
                        .stage = 0,
                        .grad_sync = sync},
                       kSteps);
  }
  return it->second;
}

void expect_equal_to_reference(bool tied, const RunShape& setup) {
  const Outcome outcome = train(tiny_training(tiny_model(tied)), setup, kSteps);
  EXPECT_EQ(difference(outcome, reference(tied, setup)), "")
      << (tied ? "tied, " : "untied, ") << name_of(setup);
}

// Prefetch depth, threads, resharding and delays in rotation, so that over the stages, worlds and
// micro-steps every pair of values occurs (96 runs).
TEST(EqualityLadder, StagesWorldsMicroStepsPrefetchThreadsAndDelaysChangeNoBit) {
  constexpr int kThreads[] = {1, 2, 4};
  int run = 0;
  for (const bool tied : {false, true}) {
    for (int world = 1; world <= 4; ++world) {
      for (const int num_micro_steps : {1, 4}) {
        for (const GradSync sync : {GradSync::kEveryMicroStep, GradSync::kBoundary}) {
          if (num_micro_steps == 1 && sync == GradSync::kBoundary) continue;
          for (int stage = 0; stage <= 3; ++stage, ++run) {
            expect_equal_to_reference(tied, {.world_size = world,
                                             .num_micro_steps = num_micro_steps,
                                             .stage = stage,
                                             .grad_sync = sync,
                                             .prefetch_depth = (run + run / 4) % 4,
                                             .reshard_after_forward = run % 5 != 0,
                                             .threads_per_rank = kThreads[run % 3],
                                             .delay_seed = run % 2 ? 100u + run : 0u});
          }
        }
      }
    }
  }
}

TEST(EqualityLadder, BoundaryAndEveryMicroStepAgreeWithOneMicroStep) {
  for (int stage = 0; stage <= 3; ++stage) {
    expect_equal_to_reference(
        true, {.world_size = 3,
               .num_micro_steps = 1,
               .stage = stage,
               .grad_sync = stage < 2 ? GradSync::kEveryMicroStep : GradSync::kBoundary});
  }
}

TEST(EqualityLadder, DelaysAtEveryBoundaryChangeNoBitAtAnyStageAndDepth) {
  for (int stage = 1; stage <= 3; ++stage) {
    for (int depth = 0; depth <= 3; ++depth) {
      expect_equal_to_reference(depth % 2 == 0, {.world_size = 2 + depth % 2,
                                                 .num_micro_steps = stage == 2 ? 4 : 1,
                                                 .stage = stage,
                                                 .prefetch_depth = depth,
                                                 .delay_seed = 17u * stage + depth});
    }
  }
}

TEST(EqualityLadder, OneRankWithFourMicroStepsIsFourRanksWithOne) {
  for (const bool tied : {false, true}) {
    const Outcome one = train(tiny_training(tiny_model(tied)),
                              {.world_size = 1, .num_micro_steps = 4, .stage = 0}, kSteps);
    for (const int stage : {0, 3}) {
      const Outcome four = train(tiny_training(tiny_model(tied)),
                                 {.world_size = 4, .num_micro_steps = 1, .stage = stage}, kSteps);
      EXPECT_EQ(difference(one, four), "") << "stage " << stage;
    }
  }
}

// Rows are numbered through the whole step, and dropout is a function of the row. The loss of a first
// step is that of the same weights.
TEST(EqualityLadder, MicroStepsOfSeveralRanksDrawTheMasksOfOneRank) {
  const auto options = tiny_training(tiny_model(true));
  const double one = train(options, {.world_size = 1, .num_micro_steps = 4}, 1).losses[0];
  for (const int stage : {0, 3}) {
    const RunShape two_ranks{.world_size = 2, .num_micro_steps = 2, .stage = stage};
    EXPECT_EQ(train(options, two_ranks, 1).losses[0], one) << "stage " << stage;
  }
}

// A row's mask doesn't follow the micro-batch that it is in.
TEST(EqualityLadder, AMicroBatchDrawsTheMasksThatItsRowsHaveInALargerOne) {
  model::ModelShape shape = tiny_model(true);
  shape.dropout = 0.2;
  const auto four_steps = tiny_training(shape);
  shape.sequences *= 4;
  const auto one_step = tiny_training(shape);
  EXPECT_EQ(train(four_steps, {.num_micro_steps = 4}, 1).losses[0],
            train(one_step, {}, 1).losses[0]);
}

TEST(EqualityLadder, WithClippingOneAndFourRanksStillAgreeBitForBit) {
  const float max_norm = 0.05f;
  const auto options = tiny_training(tiny_model(true), max_norm);
  const Outcome one = train(options, {.world_size = 1, .num_micro_steps = 4}, kSteps);
  const Outcome four = train(options, {.world_size = 4, .num_micro_steps = 1, .stage = 3}, kSteps);
  ASSERT_GT(one.grad_norms[0], max_norm) << "clipping was meant to be active";
  EXPECT_EQ(difference(one, four), "");
}

TEST(EqualityLadder, WithClippingStagesStillAgreeBitForBit) {
  const auto options = tiny_training(tiny_model(false), 0.05f);
  const Outcome stage0 = train(options, {.world_size = 3, .stage = 0}, kSteps);
  for (int stage = 1; stage <= 3; ++stage) {
    const Outcome other = train(options, {.world_size = 3, .stage = stage}, kSteps);
    EXPECT_EQ(difference(stage0, other), "") << "stage " << stage;
  }
}

TEST(EqualityLadder, SgdWithMomentumAgreesAcrossStages) {
  auto options = tiny_training(tiny_model(true));
  options.optimizer.type = optim::OptimizerType::kSgd;
  options.optimizer.momentum = 0.9f;
  const Outcome stage0 = train(options, {.world_size = 2, .stage = 0}, kSteps);
  for (int stage = 1; stage <= 3; ++stage) {
    EXPECT_EQ(difference(stage0, train(options, {.world_size = 2, .stage = stage}, kSteps)), "");
  }
}

// The ladder can fail: another seed, or one more rank, is another run.
TEST(EqualityLadder, TellsRunsApartThatDoDiffer) {
  auto options = tiny_training(tiny_model(false));
  const Outcome a = train(options, {.world_size = 2}, kSteps);
  options.seed = 8;
  EXPECT_NE(difference(a, train(options, {.world_size = 2}, kSteps)), "");
}

// A short ladder for the thread sanitizer.
TEST(EqualityLadderSmall, StagesAgreeOnTwoAndThreeRanksWithTwoThreadsAndDelays) {
  const auto options = tiny_training(tiny_model(true));
  for (const int world : {2, 3}) {
    const RunShape first{.world_size = world, .num_micro_steps = 2, .threads_per_rank = 2};
    const Outcome stage0 = train(options, first, 2);
    for (int stage = 1; stage <= 3; ++stage) {
      RunShape setup = first;
      setup.stage = stage;
      setup.delay_seed = static_cast<std::uint64_t>(stage);
      EXPECT_EQ(difference(stage0, train(options, setup, 2)), "") << name_of(setup);
    }
  }
}

// The full product, once: 2 x 4 stages x 4 worlds x 2 x 4 depths x 3 threads x 2 = 1,536 runs.
TEST(EqualityLadderSlow, FullMatmul) {
  for (const bool tied : {false, true}) {
    for (int world = 1; world <= 4; ++world) {
      for (const int num_micro_steps : {1, 4}) {
        for (int stage = 0; stage <= 3; ++stage) {
          for (int depth = 0; depth <= 3; ++depth) {
            for (const int threads : {1, 2, 4}) {
              for (const std::uint64_t delay_seed : {0, 5}) {
                expect_equal_to_reference(tied, {.world_size = world,
                                                 .num_micro_steps = num_micro_steps,
                                                 .stage = stage,
                                                 .prefetch_depth = depth,
                                                 .threads_per_rank = threads,
                                                 .delay_seed = delay_seed});
              }
            }
          }
        }
      }
    }
  }
}

}  // namespace
}  // namespace sherd::testing
