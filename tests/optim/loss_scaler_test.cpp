#include "optim/loss_scaler.h"

#include <gtest/gtest.h>

#include "core/error.h"

namespace sherd::optim {
namespace {

LossScaling dynamic() {
  LossScaling options;
  options.mode = LossScaling::Mode::kDynamic;
  options.growth_interval = 3;
  return options;
}

TEST(LossScaler, IsOneAndInactiveWithoutScaling) {
  LossScaler scaler{LossScaling{}};
  EXPECT_FALSE(scaler.active());
  EXPECT_EQ(scaler.scale(), 1.0);
}

TEST(LossScaler, GrowsAfterTheIntervalOfCleanStepsInARow) {
  LossScaler scaler(dynamic());
  EXPECT_EQ(scaler.scale(), 65536.0);
  scaler.clean_step();
  scaler.clean_step();
  EXPECT_EQ(scaler.scale(), 65536.0);
  scaler.clean_step();
  EXPECT_EQ(scaler.scale(), 131072.0);
}

TEST(LossScaler, AnOverflowStartsTheCountOfCleanStepsAnew) {
  LossScaler scaler(dynamic());
  scaler.clean_step();
  scaler.clean_step();
  scaler.skipped_step();  // the credit of hysteresis 2 takes this one
  scaler.clean_step();
  scaler.clean_step();
  EXPECT_EQ(scaler.scale(), 65536.0);
  scaler.clean_step();
  EXPECT_EQ(scaler.scale(), 131072.0);
}

TEST(LossScaler, HalvesAtTheSecondOverflowAndAtEachAfterThatUntilItGrows) {
  LossScaler scaler(dynamic());
  scaler.skipped_step();
  EXPECT_EQ(scaler.scale(), 65536.0);
  scaler.skipped_step();
  EXPECT_EQ(scaler.scale(), 32768.0);
  scaler.skipped_step();
  EXPECT_EQ(scaler.scale(), 16384.0);
  for (int i = 0; i < 3; ++i) scaler.clean_step();
  EXPECT_EQ(scaler.scale(), 32768.0);
  scaler.skipped_step();  // growth restored the credit
  EXPECT_EQ(scaler.scale(), 32768.0);
}

TEST(LossScaler, WithHysteresisOneHalvesAtOnce) {
  LossScaling options = dynamic();
  options.hysteresis = 1;
  LossScaler scaler(options);
  scaler.skipped_step();
  EXPECT_EQ(scaler.scale(), 32768.0);
}

TEST(LossScaler, AtTheMinimumAbortsWithAnExplanationOrHolds) {
  LossScaling options = dynamic();
  options.hysteresis = 1;
  options.initial_scale_power = 2;
  options.min_scale = 2.0;
  LossScaler aborting(options);
  aborting.skipped_step();
  EXPECT_EQ(aborting.scale(), 2.0);
  EXPECT_THROW(aborting.skipped_step(), TrainingError);

  options.on_min_scale = LossScaling::OnMinScale::kHold;
  LossScaler holding(options);
  for (int i = 0; i < 20; ++i) holding.skipped_step();
  EXPECT_EQ(holding.scale(), 2.0);
}

TEST(LossScaler, ManySkipsInARowEndTheRunWhateverTheMode) {
  for (const auto mode : {LossScaling::Mode::kStatic, LossScaling::Mode::kDynamic}) {
    LossScaling options = dynamic();
    options.mode = mode;
    options.on_min_scale = LossScaling::OnMinScale::kHold;
    LossScaler scaler(options);
    for (std::int64_t i = 1; i < kMaxSkipsInARow; ++i) scaler.skipped_step();
    EXPECT_THROW(scaler.skipped_step(), TrainingError);
  }
}

TEST(LossScaler, ACleanStepBetweenSkipsStartsTheirCountAnew) {
  LossScaling options;
  options.mode = LossScaling::Mode::kStatic;
  LossScaler scaler(options);
  for (int round = 0; round < 2; ++round) {
    for (std::int64_t skip = 1; skip < kMaxSkipsInARow; ++skip)
      EXPECT_NO_THROW(scaler.skipped_step());
    scaler.clean_step();
    EXPECT_EQ(scaler.state().skips_in_a_row, 0);
  }
}

TEST(LossScaler, StaticKeepsItsScale) {
  LossScaling options = dynamic();
  options.mode = LossScaling::Mode::kStatic;
  options.initial_scale_power = 10;
  LossScaler scaler(options);
  for (int i = 0; i < 10; ++i) scaler.clean_step();
  scaler.skipped_step();
  scaler.skipped_step();
  EXPECT_EQ(scaler.scale(), 1024.0);
}

TEST(LossScaler, GoesOnFromARestoredStateAsIfNeverStopped) {
  LossScaler a(dynamic());
  a.clean_step();
  a.skipped_step();
  a.clean_step();
  LossScaler b(dynamic());
  b.restore(a.state());
  for (int i = 0; i < 2; ++i) {
    a.clean_step();
    b.clean_step();
  }
  EXPECT_EQ(a.state(), b.state());
  EXPECT_EQ(b.scale(), 131072.0);
}

}  // namespace
}  // namespace sherd::optim
