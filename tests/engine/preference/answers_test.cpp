// Answers of a micro-batch: which tokens count, and what is added up.
#include "engine/preference/answers.h"

#include <gtest/gtest.h>

#include <cmath>

namespace sherd::engine {
namespace {

PreferenceOptions dpo() {
  PreferenceOptions options;
  options.loss = PreferenceLoss::kSigmoid;
  return options;
}

TEST(Answers, OnlyTokensWithATargetCount) {
  const std::vector<float> losses = {9.0f, 1.0f, 2.0f, 9.0f};
  const std::vector<std::int32_t> targets = {-1, 4, 5, -1};
  const AnswerScore score = score_of({.first = 0, .count = 4}, losses, targets);
  EXPECT_EQ(score.log_probability, -3.0);
  EXPECT_EQ(score.tokens, 2);
}

// The weight of a token is what its answer's loss changes by: -d loss / d log-probability.
TEST(Answers, TokensOfAnAnswerHaveItsDerivativeAndOthersNone) {
  const std::vector<float> losses = {0.0f, 1.0f, 0.0f, 2.0f, 2.0f, 0.0f, 7.0f};
  const std::vector<std::int32_t> targets = {-1, 1, -1, 2, 3, -1, -1};
  const std::vector<Answer> answers = {{0, 3, 1}, {3, 3, 0}};
  const std::vector<double> reference = {-4.0, -1.0};
  std::vector<float> weights(7, 5.0f);
  const AnswerSums sums = score_answers(dpo(), answers, losses, targets, reference, weights);
  EXPECT_EQ(sums[AnswerSums::kLoss].value(), std::log(2.0));
  EXPECT_EQ(weights, (std::vector<float>{0.05f, 0.05f, 0.05f, -0.05f, -0.05f, -0.05f, 0.0f}));
}

TEST(Answers, SumsDoNotDependOnHowAnswersAreDivided) {
  std::vector<float> losses;
  std::vector<std::int32_t> targets;
  std::vector<Answer> answers;
  std::vector<double> reference;
  for (int i = 0; i < 12; ++i) {
    answers.push_back({3 * i, 3, i});
    reference.push_back(-0.37 * i);
    for (int t = 0; t < 3; ++t) {
      losses.push_back(0.1f * static_cast<float>(i * t % 7) + 0.013f);
      targets.push_back(t == 0 ? -1 : t);
    }
  }
  const AnswerSums whole = score_answers(dpo(), answers, losses, targets, reference, {});
  AnswerSums parts;
  for (const std::size_t begin : {8U, 2U, 0U}) {
    const std::size_t end = begin == 8 ? 12 : begin == 2 ? 8 : 2;
    AnswerSums part = score_answers(dpo(), std::span(answers).subspan(begin, end - begin), losses,
                                    targets, reference, {});
    parts.add(std::span<const double>(part.numbers()));
  }
  for (int i = 0; i < AnswerSums::kCount; ++i) {
    EXPECT_EQ(parts[static_cast<AnswerSums::Of>(i)].value(),
              whole[static_cast<AnswerSums::Of>(i)].value());
  }
  const PreferenceReport report = report_of(dpo(), whole);
  EXPECT_EQ(report.margins, report.rewards_chosen - report.rewards_rejected);
  EXPECT_EQ(whole[AnswerSums::kNumChosen].value(), 6.0);
}

// Answers to other prompts measure how far the weights have moved; they aren't trained on.
TEST(Answers, OtherAnswersFormTheDivergenceAndGetNoGradient) {
  PreferenceOptions options;
  options.loss = PreferenceLoss::kKto;
  const std::vector<float> losses = {1.0f, 1.0f, 4.0f, 1.0f};
  const std::vector<std::int32_t> targets = {1, 1, 1, 1};
  const std::vector<Answer> answers = {{0, 1, 0, true}, {1, 1, 1}, {2, 1, 2, false}, {3, 1, 3}};
  const std::vector<double> reference = {-3.0, -2.0, -4.0, -1.5};
  std::vector<float> weights(4);
  const AnswerSums sums = score_answers(options, answers, losses, targets, reference, weights);
  const double k = 0.75;  // the mean of -1 + 2 and -1 + 1.5
  EXPECT_EQ(sums[AnswerSums::kDivergence].value(), k);
  const auto s = [](double x) { return 1.0 / (1.0 + std::exp(-x)); };
  EXPECT_NEAR(sums[AnswerSums::kLoss].value(), (1 - s(0.1 * (2 - k))) + (1 - s(0.1 * k)), 1e-15);
  EXPECT_EQ(weights[1], 0.0f);
  EXPECT_EQ(weights[3], 0.0f);
  EXPECT_GT(weights[0], 0.0f);
  EXPECT_LT(weights[2], 0.0f);
}

}  // namespace
}  // namespace sherd::engine
