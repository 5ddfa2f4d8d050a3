#include "kernels/router.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <optional>

#include "tests/kernels/router_case.h"
#include "tests/support/oracles/oracle_router.h"

// B sequences of S tokens, E experts, k of them for each token.
namespace sherd::kernels {
namespace {

std::vector<bool> padding_of(const Inputs& in) {
  std::vector<bool> padding(static_cast<std::size_t>(in.shape.tokens()), !in.starts.empty());
  for (std::size_t i = 0; i < in.lengths.size(); ++i) {
    for (std::int32_t t = 0; t < in.lengths[i]; ++t) {
      padding[static_cast<std::size_t>(in.starts[i] + t)] = false;
    }
  }
  return padding;
}

Values previous_of(const Inputs& in) {
  return {in.previous.begin(), in.previous.end()};
}

// Three tokens with values computed in f64; transformers 5.23 has the same where it has the rule.
const Values kGoldenLogits = {0.5,   -1.0, 2.0,   1.5,   -0.5, 0.25, 1.0,  -2.0,  //
                              1.25,  1.0,  -0.75, 0.0,   0.5,  2.5,  -1.5, 2.0,   //
                              -0.25, 0.75, 0.1,   -1.25, 1.75, 1.5,  0.4,  0.9};

RouterShape golden(RouterScore score, bool normalise) {
  return {.sequences = 1,
          .positions = 3,
          .experts = 8,
          .per_token = 2,
          .score = score,
          .normalise = normalise};
}

void expect_routes(const Inputs& in, const Values& chosen, const Values& weights) {
  const Outputs out = forward(*test::compute_stream(), in);
  EXPECT_EQ(out[kChosen].values(), chosen);
  EXPECT_TRUE(test::close(out[kWeights], weights, {.absolute = 1e-6}));
}

TEST(Router, HasTheWeightsOfEachRule) {
  expect_routes({golden(RouterScore::kSoftmax, false), kGoldenLogits}, {2, 3, 5, 7, 4, 5},
                {.3965890, .2405434, .4182918, .2537068, .3114772, .2425787});
  const Values normalised = {.6224593, .3775407, .6224593, .3775407, .5621765, .4378235};
  expect_routes({golden(RouterScore::kSoftmax, true), kGoldenLogits}, {2, 3, 5, 7, 4, 5},
                normalised);
  expect_routes({golden(RouterScore::kSoftmaxOfChosen, false), kGoldenLogits}, {2, 3, 5, 7, 4, 5},
                normalised);
  RouterShape one = golden(RouterScore::kSigmoid, false);
  one.per_token = 1;
  expect_routes({one, kGoldenLogits}, {2, 5, 4}, {.8807971, .9241418, .8519528});
}

// The numbers of transformers' function, in f64.
TEST(Router, HasSparsemixersWeightsOfNearTies) {
  RouterShape shape = golden(RouterScore::kSparsemixer, false);
  shape.positions = 2;
  shape.jitter = 0.01f;
  // The second token's largest logit is below 0.
  expect_routes({shape,
                 {.5, -1, 2, 1.97, 1.95, .25, 1, -2,  //
                  -3, -1, -1.01, -1.5, -2, -1.005, -4, -5}},
                {2, 3, 1, 5}, {.5074994, .5049998, .3350014, .5012500});
}

// All of these sigmoids are 1 in f32.
TEST(Router, ComparesSigmoidsByTheirLogits) {
  RouterShape shape = golden(RouterScore::kSigmoid, false);
  shape.positions = 1;
  shape.per_token = 1;
  expect_routes({shape, {20, 21, 40, 39, 0, 5, 30, -2}}, {2}, {1.0});
}

TEST(Router, HasGroupsAndABiasAsDeepSeekV3) {
  RouterShape shape = golden(RouterScore::kSigmoid, true);
  shape.scale = 2.5f;
  shape.added_sum = 1e-20f;
  shape.groups = 4;
  shape.kept_groups = 2;
  shape.group_scores = 2;
  const Values bias = {0, .3, -.4, 0, 0, -.3, .1, .2};
  expect_routes({shape, kGoldenLogits, bias}, {0, 3, 1, 7, 1, 7},
                {1.0806332, 1.4193668, 1.1338772, 1.3661228, 1.2214318, 1.2785682});
  shape.groups = shape.kept_groups = 1;
  const Outputs out = forward(*test::compute_stream(), {shape, kGoldenLogits, bias});
  EXPECT_EQ(out[kChosen].values(), (Values{3, 6, 1, 7, 1, 7}));
  // A group that isn't kept loses also to experts with negative values (transformers issue 45440).
  shape.groups = 4;
  shape.kept_groups = 2;
  Values negative = bias;
  for (double& value : negative) value -= 5.0;
  expect_routes({shape, kGoldenLogits, negative}, {0, 3, 1, 7, 1, 7},
                {1.0806332, 1.4193668, 1.1338772, 1.3661228, 1.2214318, 1.2785682});
}

TEST(Router, HasTheLossesOfMegatronAndStMoe) {
  RouterShape shape = golden(RouterScore::kSoftmax, false);
  shape.balance = shape.z = 1.0f;
  const Inputs in{shape, kGoldenLogits};
  const auto stream = test::compute_stream();
  const Outputs out = forward(*stream, in);
  const Values balance = out[kBalance].values();
  EXPECT_NEAR(balance[8], 1.3410354, 2e-6);
  EXPECT_NEAR(balance[9], 9.4759530, 2e-5);
  // Half of the gradient of transformers' loss, which isn't divided by k; without the z-loss.
  shape.z = 0.0f;
  const Inputs without_z{shape, kGoldenLogits};
  const Values d_logits =
      backward(*stream, without_z, forward(*stream, without_z), Values(6, 0.0), 2.0f).values();
  EXPECT_TRUE(test::close(
      Values(d_logits.begin(), d_logits.begin() + 8),
      {-.0640898, -.0143004, .0652930, .0396022, .0053596, .0726056, -.1056662, .0011959},
      {.absolute = 1e-6}));
}

TEST(Router, PrefersTheLowerOfEqualExperts) {
  RouterShape shape = golden(RouterScore::kSoftmax, false);
  shape.positions = 2;
  const Values logits = {0, 0, 0, 0, 0, 0, 0, 0, 1, 3, 3, 2, 3, 0, -1, -1};
  const Outputs out = forward(*test::compute_stream(), {shape, logits});
  EXPECT_EQ(out[kChosen].values(), (Values{0, 1, 1, 2}));
}

TEST(Router, ChoosesDifferentExpertsAlsoWhereLogitsArentNumbers) {
  constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  RouterShape shape = golden(RouterScore::kSigmoid, true);
  shape.per_token = 3;
  Values logits(24, kNaN);
  std::fill(logits.begin() + 8, logits.begin() + 16, -kInfinity);
  const Values chosen = forward(*test::compute_stream(), {shape, logits})[kChosen].values();
  EXPECT_EQ(Values(chosen.begin(), chosen.begin() + 6), (Values{0, 1, 2, 0, 1, 2}));
}

std::vector<Inputs> random_inputs() {
  std::vector<Inputs> all;
  std::uint64_t seed = 1;
  for (const RouterScore score :
       {RouterScore::kSoftmax, RouterScore::kSoftmaxOfChosen, RouterScore::kSigmoid}) {
    for (const BalanceScope scope :
         {BalanceScope::kSequence, BalanceScope::kMicroBatch, BalanceScope::kPreviousStep}) {
      for (const bool normalise : {false, true}) {
        RouterShape shape{.sequences = 3,
                          .positions = 37,
                          .experts = 12,
                          .per_token = static_cast<int>(1 + seed % 5),
                          .score = score,
                          .normalise = normalise,
                          .scale = 1.5f,
                          .least_sum = normalise && seed % 4 == 0 ? 2.0f : 0.0f,
                          .added_sum = normalise && seed % 4 == 1 ? 0.25f : 0.0f,
                          .scope = scope,
                          .balance = 0.7f,
                          .z = 0.3f};
        if (score == RouterScore::kSigmoid) {
          shape.groups = 4;
          shape.kept_groups = 2;
          shape.group_scores = 2;
        }
        Inputs in{shape, test::random_values(shape.tokens() * shape.experts, seed, 3.0)};
        if (score == RouterScore::kSigmoid) in.bias = test::random_values(shape.experts, seed + 99);
        if (seed % 2 == 0) {  // padding after the second row's document, and a third row of two
          in.starts = {0, 37, 74, 90, 111};
          in.lengths = {37, 11, 16, 5};
        }
        if (scope == BalanceScope::kPreviousStep) {
          in.previous = {5, 0, 40, 3, 8, 1, 1, 90, 2, 11, 0, 7, 84};
        }
        all.push_back(std::move(in));
        ++seed;
      }
    }
  }
  return all;
}

TEST(Router, AgreesWithTheOracleOnAnyNumberOfThreads) {
  for (const Inputs& in : random_inputs()) {
    const Outputs out =
        test::on_any_number_of_threads([&](Stream& stream) { return forward(stream, in); });
    const oracle::Routing expected = oracle::route(in.shape, in.logits, in.bias, padding_of(in));
    const Values chosen = out[kChosen].values();
    const std::int64_t k = in.shape.per_token;
    Values counts(static_cast<std::size_t>(in.shape.sequences * in.shape.experts));
    for (std::int64_t t = 0; t < in.shape.tokens(); ++t) {
      const auto& own = expected.chosen[static_cast<std::size_t>(t)];
      Values of_token(own.begin(), own.end());
      if (own.empty()) of_token.assign(static_cast<std::size_t>(k), -1.0);
      EXPECT_EQ(Values(chosen.begin() + t * k, chosen.begin() + (t + 1) * k), of_token) << t;
      for (const std::int32_t e : own) {
        counts[static_cast<std::size_t>(t / in.shape.positions * in.shape.experts + e)] += 1.0;
      }
    }
    EXPECT_EQ(out[kCounts].values(), counts);
    EXPECT_TRUE(test::close(out[kWeights], expected.weights, {.relative = 2e-6, .absolute = 1e-7}));
    double balance = 0.0, z = 0.0;
    const Values groups = out[kBalance].values();
    const auto E = static_cast<std::size_t>(in.shape.experts);
    for (std::size_t g = 0; g < groups.size(); g += E + 2) {
      balance += groups[g + E];
      z += groups[g + E + 1];
    }
    EXPECT_NEAR(balance, oracle::balance_loss(in.shape, in.logits, expected, previous_of(in)),
                1e-5);
    EXPECT_NEAR(z, oracle::z_loss(in.shape, in.logits, expected), 1e-4);
  }
}

TEST(Router, HasTheGradientOfFiniteDifferences) {
  for (const Inputs& in : random_inputs()) {
    const RouterShape& shape = in.shape;
    const oracle::Routing routing = oracle::route(shape, in.logits, in.bias, padding_of(in));
    const Values d_weights = test::random_values(shape.tokens() * shape.per_token, 7);
    const auto loss = [&](const Values& logits) {
      const Values weights = oracle::weights_of(shape, logits, routing);
      double sum = 0.0;
      for (std::size_t i = 0; i < weights.size(); ++i) sum += weights[i] * d_weights[i];
      return sum + 3.0 * (oracle::balance_loss(shape, logits, routing, previous_of(in)) +
                          oracle::z_loss(shape, logits, routing));
    };
    const OwnedTensor logits(DType::kF32, in.logits);
    Values expected;
    for (std::size_t i = 0; i < in.logits.size(); ++i) {
      Values above = logits.values(), below = above;
      above[i] += 1e-5;
      below[i] -= 1e-5;
      expected.push_back((loss(above) - loss(below)) / 2e-5);
    }
    const Outputs d_logits = test::on_any_number_of_threads([&](Stream& stream) {
      return Outputs{backward(stream, in, forward(stream, in), d_weights, 3.0f)};
    });
    EXPECT_TRUE(test::close(d_logits[0], expected, {.relative = 1e-4, .absolute = 2e-6}));
  }
}

TEST(Router, OfABalancedBatchHasALossOfExactlyAlpha) {
  RouterShape shape{.positions = 8, .experts = 4, .per_token = 2, .balance = 0.25f};
  const Values logits(32, 0.5);
  Outputs out = forward(*test::compute_stream(), {shape, logits});
  // All take experts 0 and 1, but p is even: 1 whatever the counts are.
  EXPECT_EQ(out[kBalance].values()[4], 0.25);
}

TEST(Router, LossesOfSequencesDontDependOnTheMicroBatch) {
  RouterShape shape{
      .sequences = 4, .positions = 9, .experts = 6, .per_token = 2, .balance = 1.0f, .z = 1.0f};
  const Values logits = test::random_values(shape.tokens() * 6, 5, 2.0);
  const auto stream = test::compute_stream();
  const Values together = forward(*stream, {shape, logits})[kBalance].values();
  shape.sequences = 1;
  for (std::int64_t b = 0; b < 4; ++b) {
    const Values alone =
        forward(*stream,
                {shape, Values(logits.begin() + b * 54, logits.begin() + (b + 1) * 54)})[kBalance]
            .values();
    EXPECT_EQ(Values(together.begin() + b * 8, together.begin() + (b + 1) * 8), alone);
  }
}

// 5 experts, 17 rows in all: five times 3 is below, five times 4 above. Doubling the batch changes nothing.
TEST(Router, IsCorrectedByTheSignOfIntegerDifferences) {
  const auto stream = test::compute_stream();
  for (const std::int64_t batch : {1, 2}) {
    const std::vector<std::int64_t> counts = {3 * batch, 4 * batch, 0, 10 * batch, 0};
    OwnedTensor bias(DType::kF32, test::Values{0.5, 0.5, 0.5, 0.5, 0.5});
    router_correction(*stream, {counts, 0, 0.25f, bias});
    router_correction(*stream, {counts, 2, 0.25f, Tensor(bias).part(2, 2)});
    router_correction(*stream, {std::vector<std::int64_t>(5, 7 * batch), 0, 0.25f, bias});
    stream->synchronize();
    EXPECT_EQ(bias.values(), (test::Values{0.75, 0.25, 1.0, 0.0, 0.75}));
  }
}

}  // namespace
}  // namespace sherd::kernels
