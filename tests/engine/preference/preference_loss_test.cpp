// Losses on preferences: published values, and derivatives by central differences.
#include "engine/preference/preference_loss.h"

#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <string>

namespace sherd::engine {
namespace {

PreferenceOptions options_of(PreferenceLoss loss, double beta = 0.1, double smoothing = 0.0) {
  PreferenceOptions options;
  options.loss = loss;
  options.beta = beta;
  options.label_smoothing = smoothing;
  return options;
}

struct Pair {
  AnswerScore chosen, rejected;
};

// torchtune's test of its DPO losses (tests/torchtune/rlhf/loss/test_dpo_loss.py).
const std::array<Pair, 3> kPairs = {{{{-0.5, -0.5, 1}, {-0.1, -0.1, 1}},
                                     {{-10.0, -10.1, 1}, {-30.0, -20.1, 1}},
                                     {{-1.0, -0.1, 1}, {-21.0, -0.1, 1}}}};

void expect_losses(const PreferenceOptions& options, const std::array<double, 3>& expected) {
  for (std::size_t i = 0; i < 3; ++i) {
    EXPECT_NEAR(pair_loss(options, kPairs[i].chosen, kPairs[i].rejected).loss, expected[i], 5e-7)
        << i;
  }
}

TEST(PreferenceLoss, HasTheValuesOfTorchtunesTest) {
  expect_losses(options_of(PreferenceLoss::kSigmoid), {0.693147, 0.313262, 0.126928});
  expect_losses(options_of(PreferenceLoss::kRobust, 0.1, 0.1), {0.693147, 0.188262, -0.123072});
  expect_losses(options_of(PreferenceLoss::kHinge), {1.0, 0.0, 0.0});
  expect_losses(options_of(PreferenceLoss::kApoZero), {1.0, 0.768412, 0.632557});
}

// Log-ratios 0.4 over 4 tokens and -1 over 5: 0.1 + 0.2 - 5 squared.
TEST(PreferenceLoss, IpoTakesMeansOverTokens) {
  const PairLoss pair = pair_loss(options_of(PreferenceLoss::kIpo), {0.4, 0.0, 4}, {-1.0, 0.0, 5});
  EXPECT_NEAR(pair.loss, 22.09, 1e-12);
}

// Means -0.5 and -1 have a log-odds ratio of 0.974077, whose ln s is -0.3203.
TEST(PreferenceLoss, OrpoAddsTheOddsRatioToTheMeanOfTheChosenAnswer) {
  const auto odds_part = [](double chosen, double rejected) {
    const PairLoss pair = pair_loss(options_of(PreferenceLoss::kOrpo, 1.0), {2.0 * chosen, 0.0, 2},
                                    {3.0 * rejected, 0.0, 3});
    return pair.loss + chosen;
  };
  EXPECT_NEAR(odds_part(-0.5, -1.0), 0.3203, 5e-5);
  EXPECT_NEAR(odds_part(-0.1, -2.0), 0.016327, 5e-7);
}

TEST(PreferenceLoss, KtoComparesAnAnswerWithTheDivergence) {
  const PreferenceOptions options = options_of(PreferenceLoss::kKto);
  EXPECT_NEAR(judged_loss(options, {2.0, 0.0, 3}, true, 0.5).loss, 0.46257, 5e-6);
  EXPECT_NEAR(judged_loss(options, {2.0, 0.0, 3}, false, 0.5).loss, 0.53743, 5e-6);
}

// beta (m_c - m_r) - gamma = 2 (0.25) - 0.5 = 0.
TEST(PreferenceLoss, SimpoSubtractsItsMarginFromMeansOverTokens) {
  PreferenceOptions options = options_of(PreferenceLoss::kSimpo, 2.0);
  options.simpo_gamma = 0.5;
  const PairLoss pair = pair_loss(options, {-3.0, 99.0, 4}, {-2.0, 99.0, 2});
  EXPECT_NEAR(pair.loss, std::log(2.0), 1e-15);
  EXPECT_EQ(pair.reward_chosen, -1.5);
}

TEST(PreferenceLoss, BeginsWithLnTwoAndNoMargin) {
  const PairLoss pair =
      pair_loss(options_of(PreferenceLoss::kSigmoid), {-31.25, -31.25, 7}, {-12.5, -12.5, 3});
  EXPECT_EQ(pair.loss, std::log(2.0));
  EXPECT_EQ(pair.reward_chosen - pair.reward_rejected, 0.0);
  EXPECT_EQ(pair.d_chosen, -0.05);
  EXPECT_EQ(pair.d_rejected, 0.05);
}

TEST(PreferenceLoss, DerivativesAreThoseOfCentralDifferences) {
  constexpr double kStep = 1e-6;
  for (const PreferenceLoss loss :
       {PreferenceLoss::kSigmoid, PreferenceLoss::kRobust, PreferenceLoss::kHinge,
        PreferenceLoss::kIpo, PreferenceLoss::kApoZero, PreferenceLoss::kApoDown,
        PreferenceLoss::kOrpo, PreferenceLoss::kSimpo}) {
    const PreferenceOptions options = options_of(loss, 0.3, 0.2);
    for (const Pair& pair :
         {Pair{{-3.0, -2.5, 4}, {-4.0, -5.5, 3}}, Pair{{-20.0, -26.0, 9}, {-6.0, -2.0, 5}}}) {
      const auto at = [&](double chosen, double rejected) {
        AnswerScore c = pair.chosen, r = pair.rejected;
        c.log_probability += chosen;
        r.log_probability += rejected;
        return pair_loss(options, c, r).loss;
      };
      const PairLoss exact = pair_loss(options, pair.chosen, pair.rejected);
      EXPECT_NEAR(exact.d_chosen, (at(kStep, 0) - at(-kStep, 0)) / (2 * kStep), 1e-7)
          << static_cast<int>(loss);
      EXPECT_NEAR(exact.d_rejected, (at(0, kStep) - at(0, -kStep)) / (2 * kStep), 1e-7)
          << static_cast<int>(loss);
    }
  }
  PreferenceOptions options = options_of(PreferenceLoss::kKto, 0.4);
  options.desirable_weight = 1.5;
  options.undesirable_weight = 0.5;
  for (const bool wanted : {true, false}) {
    const auto at = [&](double change) {
      return judged_loss(options, {-3.0 + change, -2.0, 4}, wanted, 0.7).loss;
    };
    EXPECT_NEAR(judged_loss(options, {-3.0, -2.0, 4}, wanted, 0.7).d_answer,
                (at(kStep) - at(-kStep)) / (2 * kStep), 1e-8);
  }
}

TEST(PreferenceLoss, StaysFiniteWhereAnswersAreCertainOrImpossible) {
  for (const PreferenceLoss loss :
       {PreferenceLoss::kSigmoid, PreferenceLoss::kRobust, PreferenceLoss::kApoZero,
        PreferenceLoss::kApoDown, PreferenceLoss::kOrpo, PreferenceLoss::kSimpo}) {
    for (const double chosen : {0.0, -1e4}) {
      const PairLoss pair =
          pair_loss(options_of(loss, 1.0, 0.1), {chosen, -5.0, 2}, {-1e4 - chosen, -5.0, 2});
      EXPECT_TRUE(std::isfinite(pair.loss) && std::isfinite(pair.d_chosen) &&
                  std::isfinite(pair.d_rejected))
          << static_cast<int>(loss);
    }
  }
}

}  // namespace
}  // namespace sherd::engine
