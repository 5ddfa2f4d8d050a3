#include "optim/bad_steps.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "core/error.h"
#include "tests/support/values/error_text.h"

namespace sherd::optim {
namespace {

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
constexpr double kInf = std::numeric_limits<double>::infinity();

// 64 losses that alternate between 2.0 and 2.1: mean 2.05, sample deviation 0.0503953, so the limit
// at 6 sigma is 2.352372. By the population's deviation it would be 2.35.
TEST(BadSteps, JudgesByTheSampleDeviationOfTheWindow) {
  BadSteps steps({.sigma = 6, .window = 128});
  for (int i = 0; i < 64; ++i) steps.applied({i % 2 == 0 ? 2.0 : 2.1, 1.0});
  EXPECT_EQ(steps.reason({2.351, 1.0}), "");
  EXPECT_EQ(steps.reason({2.3523, 1.0}), "");
  EXPECT_EQ(steps.reason({2.3524, 1.0}),
            "loss 2.3524 is above 2.35237, the mean of the last 64 steps + 6 sigma");
  EXPECT_EQ(steps.reason({2.0, 1.0}), "") << "the norm is as it always was";
  EXPECT_NE(steps.reason({2.0, 1.1}), "") << "a norm above a constant one";
}

TEST(BadSteps, WaitForHalfAWindow) {
  BadSteps steps({.sigma = 6, .window = 128});
  for (int i = 0; i < 63; ++i) steps.applied({2.0 + 0.1 * (i % 2), 1.0});
  EXPECT_EQ(steps.reason({1000.0, 1000.0}), "");
  steps.applied({2.1, 1.0});
  EXPECT_NE(steps.reason({1000.0, 1.0}), "");
}

// Peers that let a NaN into the window skip every further step for as long as it is there.
TEST(BadSteps, NeverEnterTheWindow) {
  BadSteps steps({.sigma = 6, .window = 4, .skip_non_finite = true});
  for (const double loss : {2.0, 2.1, 2.0, 2.1}) steps.applied({loss, 1.0});
  const BadSteps::State before = steps.state();
  for (const double loss : {kNan, kInf, 50.0}) {
    const std::string reason = steps.reason({loss, 1.0});
    ASSERT_NE(reason, "");
    steps.skipped(reason);
  }
  EXPECT_EQ(steps.state().window, before.window);
  EXPECT_EQ(steps.state().total, 3);
  EXPECT_EQ(steps.reason({2.05, 1.0}), "");
}

TEST(BadSteps, AreThoseAboveALimit) {
  const BadSteps steps({.max_loss = 5, .max_grad_norm = 10});
  EXPECT_EQ(steps.reason({5.0, 10.0}), "");
  EXPECT_EQ(steps.reason({5.5, 1.0}), "loss 5.5 is above bad_steps.max_loss 5");
  EXPECT_EQ(steps.reason({1.0, 11.0}), "gradient norm 11 is above bad_steps.max_grad_norm 10");
}

TEST(BadSteps, ThatAreNotFiniteAreLeftToOthersUnlessAskedFor) {
  EXPECT_EQ(BadSteps({.max_loss = 5}).reason({kNan, 1.0}), "");
  EXPECT_EQ(BadSteps({.skip_non_finite = true}).reason({1.0, kInf}),
            "loss 1 and gradient norm inf aren't both finite");
}

TEST(BadSteps, EndTheRunAfterTooManyInARow) {
  BadSteps steps({.max_loss = 5, .max_in_a_row = 3});
  steps.skipped("a");
  steps.skipped("b");
  steps.applied({1.0, 1.0});
  steps.skipped("c");
  steps.skipped("d");
  EXPECT_EQ(test::error_text<TrainingError>([&] { steps.skipped("loss 9 is above 5"); }),
            "3 steps in a row weren't applied (bad_steps.max_in_a_row); the last: loss 9 is above "
            "5. Resume from an older checkpoint, with a lower optimizer.lr or other limits.");
}

TEST(BadSteps, ContinueFromTheirStateWithAShorterWindow) {
  BadSteps steps({.sigma = 6, .window = 8});
  for (int i = 0; i < 8; ++i) steps.applied({static_cast<double>(i), 1.0});
  BadSteps shorter({.sigma = 6, .window = 4});
  shorter.restore(steps.state());
  ASSERT_EQ(shorter.state().window.size(), 4u);
  EXPECT_EQ(shorter.state().window[0].loss, 4.0) << "the newest stay";
}

}  // namespace
}  // namespace sherd::optim
