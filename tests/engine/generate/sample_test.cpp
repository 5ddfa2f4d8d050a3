#include "engine/generate/sample.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <set>

#include "engine/model/cut/tensor_cut.h"
#include "tests/support/runs/training_harness.h"

namespace sherd::testing {
namespace {

using engine::choose_token;
using Ids = std::vector<std::int32_t>;

// Logits of the probabilities 0.1, 0.4, 0.3, 0.2, shifted by a common constant.
std::vector<float> four_logits() {
  std::vector<float> logits;
  for (const double p : {0.1, 0.4, 0.3, 0.2}) logits.push_back(static_cast<float>(std::log(p) + 5));
  return logits;
}

// How often each token is chosen when u runs through [0, 1) in `n` even steps.
std::vector<double> shares(const std::vector<float>& logits, const engine::SamplingOptions& options,
                           int n = 10'000) {
  std::vector<double> shares(logits.size());
  for (int i = 0; i < n; ++i) {
    const std::int32_t id = choose_token(logits, options, (i + 0.5) / n);
    shares[static_cast<std::size_t>(id)] += 1.0 / n;
  }
  return shares;
}

void expect_shares(const std::vector<double>& actual, const std::vector<double>& expected) {
  ASSERT_EQ(actual.size(), expected.size());
  for (std::size_t i = 0; i < actual.size(); ++i) EXPECT_NEAR(actual[i], expected[i], 2e-4) << i;
}

TEST(ChooseToken, TakesTheMostLikelyAtTemperatureZeroWhateverTheDraw) {
  for (const double u : {0.0, 0.5, 0.999999}) {
    EXPECT_EQ(choose_token(four_logits(), {.temperature = 0.0}, u), 1);
    EXPECT_EQ(choose_token(four_logits(), {.temperature = 0.0, .top_k = 3}, u), 1);
  }
}

TEST(ChooseToken, TakesTheLowestIdOfEqualLogitsAtTemperatureZero) {
  EXPECT_EQ(choose_token(std::vector<float>{1.0f, 2.0f, 2.0f}, {.temperature = 0.0}, 0.9), 1);
}

TEST(ChooseToken, ChoosesInProportionToSoftmax) {
  expect_shares(shares(four_logits(), {}), {0.1, 0.4, 0.3, 0.2});
}

TEST(ChooseToken, SharpensWithALowTemperatureAndFlattensWithAHighOne) {
  // Temperature 1/2 squares the probabilities: 1, 16, 9, 4 of 30.
  expect_shares(shares(four_logits(), {.temperature = 0.5}), {1 / 30., 16 / 30., 9 / 30., 4 / 30.});
  for (const double share : shares(four_logits(), {.temperature = 1000.0})) {
    EXPECT_NEAR(share, 0.25, 1e-3);
  }
}

TEST(ChooseToken, NeverLeavesTheTopK) {
  expect_shares(shares(four_logits(), {.top_k = 2}), {0.0, 4 / 7., 3 / 7., 0.0});
  expect_shares(shares(four_logits(), {.top_k = 1}), {0.0, 1.0, 0.0, 0.0});
  expect_shares(shares(four_logits(), {.top_k = 100}), {0.1, 0.4, 0.3, 0.2});
}

TEST(ChooseToken, KeepsTheFewestTokensThatReachTopP) {
  // The likeliest have 0.4 and 0.3: together 0.7.
  expect_shares(shares(four_logits(), {.top_p = 0.39}), {0.0, 1.0, 0.0, 0.0});
  expect_shares(shares(four_logits(), {.top_p = 0.69}), {0.0, 4 / 7., 3 / 7., 0.0});
  expect_shares(shares(four_logits(), {.top_p = 0.71}), {0.0, 4 / 9., 3 / 9., 2 / 9.});
  expect_shares(shares(four_logits(), {.top_p = 0.0}), {0.0, 1.0, 0.0, 0.0});
}

TEST(ChooseToken, AppliesTopPToWhatTopKHasLeft) {
  // Two tokens have 4/7 and 3/7: 0.5 leaves one, 0.6 both.
  expect_shares(shares(four_logits(), {.top_k = 2, .top_p = 0.5}), {0.0, 1.0, 0.0, 0.0});
  expect_shares(shares(four_logits(), {.top_k = 2, .top_p = 0.6}), {0.0, 4 / 7., 3 / 7., 0.0});
}

TEST(ChooseToken, NeverTakesANaN) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  EXPECT_EQ(engine::likeliest(std::vector<float>{nan, 1.0f, nan, 2.0f}), 3);
}

TEST(LogProbability, IsTheLogarithmOfTheTokensShare) {
  EXPECT_NEAR(engine::log_probability(four_logits(), 1), std::log(0.4), 1e-6);
  EXPECT_NEAR(engine::log_probability(four_logits(), 0), std::log(0.1), 1e-6);
  EXPECT_EQ(engine::log_probability(std::vector<float>{1e30f, 0.0f}, 0), 0.0);
}

TEST(ChooseToken, SurvivesLogitsThatOverflowAnExponential) {
  EXPECT_EQ(choose_token(std::vector<float>{-3e38f, 3e38f, 0.0f}, {.temperature = 0.01}, 0.7), 1);
  EXPECT_EQ(choose_token(std::vector<float>{1000.0f, 0.0f}, {}, 0.999), 0);
}

BufferSpec input_buffer(const engine::TrainingOptions& options) {
  return {"inputs", Category::kData, DType::kI32, options.model.tokens(), kAlways, Home::kMirrored};
}

// What `sample` gives on every rank, which must be the same.
Ids sampled(const RunShape& setup, const Ids& prompt, const engine::SamplingOptions& sampling,
            const model::ModelShape& shape = tiny_model(false)) {
  const engine::TrainingOptions options = applied(tiny_training(shape), setup);
  std::vector<Ids> texts(static_cast<std::size_t>(setup.world_size));
  run_ranks(setup, [&](sharding::Rank& rank) {
    engine::ShardedModel model(options, rank);
    const sharding::MirroredBuffer inputs(rank, input_buffer(options));
    rank.guard([&] {
      engine::Decoder decoder(model, inputs);
      texts[rank.rank] = engine::sample(decoder, prompt, sampling);
    });
  });
  EXPECT_EQ(texts, std::vector<Ids>(texts.size(), texts[0])) << name_of(setup);
  return texts[0];
}

TEST(Sample, ExtendsThePromptBeyondTheContextTheSameAtEveryWorldAndStage) {
  const engine::SamplingOptions sampling{.num_tokens = 25, .temperature = 0.9, .seed = 3};
  const Ids prompt = {1, 2, 3};
  const Ids text = sampled({}, prompt, sampling);
  ASSERT_EQ(text.size(), 28u);
  EXPECT_EQ(Ids(text.begin(), text.begin() + 3), prompt);
  EXPECT_TRUE(std::all_of(text.begin(), text.end(), [](int id) { return id >= 0 && id < 41; }));
  EXPECT_GT(std::set<std::int32_t>(text.begin(), text.end()).size(), 5u);
  for (const int stage : {1, 3}) {
    EXPECT_EQ(sampled({.world_size = 2, .stage = stage}, prompt, sampling), text);
  }
  EXPECT_NE(sampled({}, prompt, {.num_tokens = 25, .temperature = 0.9, .seed = 4}), text);
}

// A text that grows from three tokens to nine: passes that two ranks can and can't share evenly.
TEST(Sample, IsTheSameWhetherTensorRanksShareTheTokensOrNot) {
  const engine::SamplingOptions sampling{.num_tokens = 12, .temperature = 0.9, .seed = 3};
  const RunShape setup{.world_size = 2, .axes = {{"tensor", 2}}};
  for (const bool canonical : {false, true}) {
    model::ModelShape shape = tiny_model(false);
    shape.ffn_width = 40;
    if (canonical) {
      shape.head_size = 8;
      shape.sequences = 1;
      shape.seq_length = 8;
      model::sum_canonically(shape);
    }
    const Ids text = sampled(setup, {1, 2, 3}, sampling, shape);
    shape.part.sequence_parallel = true;
    EXPECT_EQ(sampled(setup, {1, 2, 3}, sampling, shape), text) << canonical;
  }
}

TEST(Sample, TakesTheLikeliestTokenAfterTheLastContextAtTemperatureZero) {
  // The first drawn token follows the last nine of twelve: the same as from those nine alone.
  Ids prompt = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12};
  const Ids long_text = sampled({}, prompt, {.num_tokens = 4, .temperature = 0.0});
  prompt.erase(prompt.begin(), prompt.begin() + 3);
  const Ids short_text = sampled({}, prompt, {.num_tokens = 4, .temperature = 0.0});
  EXPECT_EQ(Ids(long_text.begin() + 3, long_text.end()), short_text);
}

TEST(Sample, LeavesTheModelReadyToTrain) {
  const RunShape setup{.world_size = 2, .stage = 3};
  const engine::TrainingOptions options = applied(tiny_training(tiny_model(false)), setup);
  std::map<bool, double> losses;
  for (const bool sample_first : {false, true}) {
    run_ranks(setup, [&](sharding::Rank& rank) {
      engine::ShardedModel model(options, rank);
      engine::TrainingStep training_step(options, model);
      const sharding::MirroredBuffer inputs(rank, input_buffer(options));
      std::vector<std::int32_t> memory;
      rank.guard([&] {
        if (sample_first) {
          engine::Decoder decoder(model, inputs);
          engine::sample(decoder, {1}, {.num_tokens = 3});
        }
        const double loss = training_step.run(0, tokens_for(options, rank, memory)).loss;
        if (rank.rank == 0) losses[sample_first] = loss;
      });
    });
  }
  EXPECT_EQ(losses[true], losses[false]);
}

}  // namespace
}  // namespace sherd::testing
