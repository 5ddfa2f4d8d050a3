#include "optim/lr_schedule.h"

#include <gtest/gtest.h>

namespace sherd::optim {
namespace {

// All expected values below are worked out by hand from the formulas in the header.

LrSchedule schedule(ScheduleType type) {
  return {.type = type,
          .lr = 1.0,
          .warmup_steps = 4,
          .decay_steps = 24,
          .min_lr_ratio = 0.1,
          .wsd_decay_steps = 5};
}

TEST(LrSchedule, WarmsUpLinearlyAndNeverStartsAtZero) {
  for (const auto type : {ScheduleType::kConstant, ScheduleType::kLinear, ScheduleType::kCosine,
                          ScheduleType::kWsd}) {
    EXPECT_DOUBLE_EQ(learning_rate(schedule(type), 0), 0.2);
    EXPECT_DOUBLE_EQ(learning_rate(schedule(type), 1), 0.4);
    EXPECT_DOUBLE_EQ(learning_rate(schedule(type), 3), 0.8);
    EXPECT_DOUBLE_EQ(learning_rate(schedule(type), 4), 1.0);
  }
}

TEST(LrSchedule, ConstantStaysAfterDecaySteps) {
  EXPECT_DOUBLE_EQ(learning_rate(schedule(ScheduleType::kConstant), 23), 1.0);
  EXPECT_DOUBLE_EQ(learning_rate(schedule(ScheduleType::kConstant), 1'000'000), 1.0);
}

TEST(LrSchedule, LinearFallsByEqualSteps) {
  const LrSchedule linear = schedule(ScheduleType::kLinear);
  EXPECT_DOUBLE_EQ(learning_rate(linear, 9), 0.775);  // 1 - 0.9 * 5 / 20
  EXPECT_DOUBLE_EQ(learning_rate(linear, 14), 0.55);  // 1 - 0.9 * 10 / 20
  EXPECT_DOUBLE_EQ(learning_rate(linear, 19), 0.325);
  EXPECT_DOUBLE_EQ(learning_rate(linear, 24), 0.1);
}

TEST(LrSchedule, CosineMatchesItsKnownPoints) {
  const LrSchedule cosine = schedule(ScheduleType::kCosine);
  EXPECT_NEAR(learning_rate(cosine, 9), 0.8681980515339464, 1e-15);    // 0.55 + 0.45 * sqrt(1/2)
  EXPECT_NEAR(learning_rate(cosine, 14), 0.55, 1e-15);                 // half way: the mean
  EXPECT_NEAR(learning_rate(cosine, 19), 0.23180194846605361, 1e-15);  // 0.55 - 0.45 * sqrt(1/2)
  EXPECT_DOUBLE_EQ(learning_rate(cosine, 24), 0.1);
}

// nanoGPT's get_lr for its CPU Shakespeare run (lr 1e-3, min 1e-4, warmup 100, decay 2000),
// evaluated at the steps where the cosine is a known number.
TEST(LrSchedule, CosineAgreesWithNanoGpt) {
  const LrSchedule nano{.type = ScheduleType::kCosine,
                        .lr = 1e-3,
                        .warmup_steps = 100,
                        .decay_steps = 2000,
                        .min_lr_ratio = 0.1};
  EXPECT_DOUBLE_EQ(learning_rate(nano, 0), 1e-3 / 101);
  EXPECT_DOUBLE_EQ(learning_rate(nano, 99), 1e-3 * 100 / 101);
  EXPECT_DOUBLE_EQ(learning_rate(nano, 100), 1e-3);
  EXPECT_NEAR(learning_rate(nano, 1050), 5.5e-4, 1e-18);
  EXPECT_DOUBLE_EQ(learning_rate(nano, 2000), 1e-4);
  EXPECT_DOUBLE_EQ(learning_rate(nano, 2001), 1e-4);
}

TEST(LrSchedule, WsdHoldsTheRateAndDecaysOverTheLastSteps) {
  // The last 5 steps decay, from step 19 on.
  const LrSchedule wsd = schedule(ScheduleType::kWsd);
  EXPECT_DOUBLE_EQ(learning_rate(wsd, 5), 1.0);
  EXPECT_DOUBLE_EQ(learning_rate(wsd, 19), 1.0);
  EXPECT_DOUBLE_EQ(learning_rate(wsd, 20), 0.82);  // 1 - 0.9 * 1 / 5
  EXPECT_DOUBLE_EQ(learning_rate(wsd, 23), 0.28);  // 1 - 0.9 * 4 / 5
  EXPECT_DOUBLE_EQ(learning_rate(wsd, 24), 0.1);
}

// Megatron's lr_wsd_decay_style, with max 1, min 0.1, warm-up 10, total 100 and decay 20; values
// from another program. Before the warm-up ends, Megatron's rate is another: step / 10.
TEST(LrSchedule, WsdDecaysInMegatronsShapes) {
  struct Row {
    DecayShape shape;
    double at_85, at_90, at_95;
  };
  for (const Row& row : {Row{DecayShape::kLinear, 0.775, 0.55, 0.325},
                         Row{DecayShape::kCosine, 0.868198, 0.55, 0.231802},
                         Row{DecayShape::kExponential, 0.713614, 0.472792, 0.270286},
                         Row{DecayShape::kMinusSqrt, 0.55, 0.363604, 0.220577}}) {
    const LrSchedule wsd{.type = ScheduleType::kWsd,
                         .lr = 1.0,
                         .warmup_steps = 10,
                         .decay_steps = 100,
                         .min_lr_ratio = 0.1,
                         .wsd_decay_shape = row.shape,
                         .wsd_decay_steps = 20};
    for (const int step : {10, 50, 80}) EXPECT_EQ(learning_rate(wsd, step), 1.0);
    EXPECT_NEAR(learning_rate(wsd, 85), row.at_85, 5e-7);
    EXPECT_NEAR(learning_rate(wsd, 90), row.at_90, 5e-7);
    EXPECT_NEAR(learning_rate(wsd, 95), row.at_95, 5e-7);
    for (const int step : {100, 101}) EXPECT_EQ(learning_rate(wsd, step), 0.1);
  }
}

TEST(LrSchedule, WsdWithoutADecayHoldsTheRateToTheEnd) {
  LrSchedule wsd = schedule(ScheduleType::kWsd);
  wsd.wsd_decay_steps = 0;
  EXPECT_EQ(learning_rate(wsd, 23), 1.0);
  EXPECT_EQ(learning_rate(wsd, 24), 0.1);
}

TEST(LrSchedule, InverseSqrtFallsByTheRootOfTheStepsAndNeverBelowTheMinimum) {
  const LrSchedule inverse = schedule(ScheduleType::kInverseSqrt);
  EXPECT_EQ(learning_rate(inverse, 4), 1.0);
  EXPECT_DOUBLE_EQ(learning_rate(inverse, 19), 0.5);   // sqrt(5 / 20)
  EXPECT_DOUBLE_EQ(learning_rate(inverse, 124), 0.2);  // sqrt(5 / 125)
  EXPECT_DOUBLE_EQ(learning_rate(inverse, 5000), 0.1);
}

TEST(LrSchedule, WsdWithALongWarmupDecaysOnlyAfterIt) {
  LrSchedule wsd = schedule(ScheduleType::kWsd);
  wsd.warmup_steps = 22;
  EXPECT_DOUBLE_EQ(learning_rate(wsd, 21), 22.0 / 23);
  EXPECT_DOUBLE_EQ(learning_rate(wsd, 22), 1.0);
  EXPECT_DOUBLE_EQ(learning_rate(wsd, 23), 0.55);  // 1 - 0.9 * 1 / 2
}

TEST(LrSchedule, StaysLowAfterDecaySteps) {
  for (const auto type : {ScheduleType::kLinear, ScheduleType::kCosine, ScheduleType::kWsd}) {
    EXPECT_DOUBLE_EQ(learning_rate(schedule(type), 25), 0.1);
    EXPECT_DOUBLE_EQ(learning_rate(schedule(type), 1'000'000'000'000), 0.1);
  }
}

TEST(LrSchedule, TakesWarmupUntilTheVeryEndOfDecay) {
  for (const auto type : {ScheduleType::kLinear, ScheduleType::kCosine, ScheduleType::kWsd}) {
    LrSchedule all_warmup = schedule(type);
    all_warmup.warmup_steps = all_warmup.decay_steps = 4;
    EXPECT_DOUBLE_EQ(learning_rate(all_warmup, 3), 0.8);
    EXPECT_DOUBLE_EQ(learning_rate(all_warmup, 4), 0.1);
  }
}

TEST(LrSchedule, StartsAtFullRateWithoutWarmup) {
  LrSchedule cosine = schedule(ScheduleType::kCosine);
  cosine.warmup_steps = 0;
  EXPECT_DOUBLE_EQ(learning_rate(cosine, 0), 1.0);
}

}  // namespace
}  // namespace sherd::optim
