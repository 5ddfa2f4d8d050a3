#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "core/thread_team.h"
#include "kernels/token.h"
#include "tests/support/oracles/oracle_token.h"
#include "tests/support/values/tensors.h"

// T tokens, V vocabulary.
namespace sherd::kernels {
namespace {

using test::Outputs;
using test::OwnedTensor;
using test::Values;

class CrossEntropy : public testing::TestWithParam<DType> {};
INSTANTIATE_TEST_SUITE_P(Types, CrossEntropy, test::compute_types(), test::type_name);

TEST_P(CrossEntropy, MatchesTheOracleOnAnyNumberOfThreads) {
  for (const auto& [tokens, vocab] :
       {std::pair{1, 1}, {1, 7}, {5, 2}, {13, 65}, {130, 200}, {7, 5003}}) {
    SCOPED_TRACE(fmt::format("T {} V {}", tokens, vocab));
    const OwnedTensor logits(GetParam(), test::random_values(tokens * vocab, 1, 5.0));
    const std::vector<std::int32_t> target_ids = test::random_tokens(tokens, vocab, 2);
    const OwnedTensor targets(target_ids);
    const float grad_scale = 0.37f;
    const auto run = [&](Stream& stream, bool gradient) {
      OwnedTensor inout = logits, losses(DType::kF32, tokens);
      cross_entropy(stream, {tokens, vocab, inout, targets, losses, gradient, grad_scale});
      return Outputs{losses, inout};
    };
    const Outputs out =
        test::on_any_number_of_threads([&](Stream& stream) { return run(stream, true); });
    const oracle::Loss expected = oracle::cross_entropy(vocab, logits.values(), target_ids);
    // log-sum-exp of about 10 minus the target's logit: 1e-6 may be left where they cancel.
    EXPECT_TRUE(test::close(out[0], expected.losses, {4e-6, 4e-6, 2e-6}));
    Values gradients = expected.gradients;
    for (double& gradient : gradients) gradient *= static_cast<double>(grad_scale);
    // softmax - 1 at the target cancels where the model is sure.
    test::Tolerance tolerance = test::rounded_once(GetParam());
    tolerance.absolute += 1e-6;
    EXPECT_TRUE(test::close(out[1], gradients, tolerance));

    const Outputs loss_only = run(*test::compute_stream(2), false);
    EXPECT_TRUE(test::same_bits(loss_only[0], out[0]));
    EXPECT_TRUE(test::same_bits(loss_only[1], logits)) << "without gradient, logits stay";
  }
}

TEST_P(CrossEntropy, KeepsSmallProbabilities) {
  // All logits but one equal: p = 1 / (V + e^8 - 1) is about 1e-4 and must keep its relative
  // precision; f16 keeps 2^-25 of it.
  constexpr std::int64_t kVocab = 1000;
  Values values(kVocab, 0.0);
  values[77] = 8.0;
  OwnedTensor logits(GetParam(), values), losses(DType::kF32, 1);
  const OwnedTensor targets(std::vector<std::int32_t>{77});
  cross_entropy(*test::compute_stream(), {1, kVocab, logits, targets, losses, true, 1.0f});
  const double p = 1.0 / (999.0 + std::exp(8.0));
  test::Tolerance tolerance = test::rounded_once(GetParam());
  tolerance.floor = 0.0;
  Values expected(kVocab, p);
  expected[77] = -999.0 * p;
  EXPECT_TRUE(test::close(logits, expected, tolerance));
}

// Later parts of a row that exceed the target, and each other, by more than a float's exponential
// can hold; the target before, among and after them.
TEST_P(CrossEntropy, TakesLogitsThatGrowAlongTheRow) {
  constexpr std::int64_t kVocab = 2100;
  Values values = test::random_values(kVocab, 1, 2.0);
  for (std::int64_t i = 0; i < kVocab; ++i)
    values[i] += i < 300 ? 0 : i < 900 ? 45 : i < 1500 ? 250 : 251;
  for (const std::int32_t target : {3, 299, 300, 1000, 2099}) {
    SCOPED_TRACE(target);
    OwnedTensor logits(GetParam(), values), losses(DType::kF32, 1);
    const OwnedTensor targets(std::vector<std::int32_t>{target});
    const oracle::Loss expected = oracle::cross_entropy(kVocab, logits.values(), {target});
    cross_entropy(*test::compute_stream(), {1, kVocab, logits, targets, losses, true, 1.0f});
    EXPECT_TRUE(test::close(losses, expected.losses, {4e-6, 4e-6, 2e-6}));
    test::Tolerance tolerance = test::rounded_once(GetParam());
    tolerance.absolute += 1e-6;
    EXPECT_TRUE(test::close(logits, expected.gradients, tolerance));
  }
}

TEST_P(CrossEntropy, DoesNotOverflow) {
  const double large = GetParam() == DType::kF16 ? 6e4 : 1e30;
  const double rounded_large = test::rounded(GetParam(), large);
  OwnedTensor logits(GetParam(), Values{large, 0.0, -large, large, -large, 1.0});
  OwnedTensor losses(DType::kF32, 2);
  const OwnedTensor targets(std::vector<std::int32_t>{0, 2});
  cross_entropy(*test::compute_stream(), {2, 3, logits, targets, losses, true, 1.0f});
  EXPECT_TRUE(test::close(losses, {0.0, rounded_large - 1.0}, {4e-6, 4e-6, 0.0}));
  EXPECT_TRUE(test::close(logits, {0.0, 0.0, 0.0, 1.0, 0.0, -1.0}, {0.0, 0.0, 0.0}));
}

// A run stops at a loss that is not finite: a broken logit must reach the loss and the gradient.
TEST_P(CrossEntropy, OfABrokenLogitIsNotFinite) {
  constexpr std::int64_t kVocab = 37;
  for (const double bad : {std::nan(""), std::numeric_limits<double>::infinity()}) {
    for (const std::size_t at : {0u, 5u, 36u}) {
      for (const std::int32_t target : {5, 6}) {
        Values values = test::random_values(kVocab, 1);
        values[at] = bad;
        OwnedTensor logits(GetParam(), values), losses(DType::kF32, 1);
        const OwnedTensor targets(std::vector<std::int32_t>{target});
        cross_entropy(*test::compute_stream(), {1, kVocab, logits, targets, losses, true, 1.0f});
        EXPECT_FALSE(std::isfinite(losses.values()[0])) << bad << " at " << at;
        EXPECT_FALSE(std::isfinite(logits.values()[at])) << bad << " at " << at;
      }
    }
  }
}

TEST_P(CrossEntropy, RowsAloneHaveTheSameBits) {
  constexpr std::int64_t kTokens = 6, kVocab = 75;
  const OwnedTensor logits(GetParam(), test::random_values(kTokens * kVocab, 1, 3.0));
  const OwnedTensor targets(test::random_tokens(kTokens, kVocab, 2));
  const auto stream = test::compute_stream();
  OwnedTensor together = logits, alone = logits;
  OwnedTensor losses(DType::kF32, kTokens), losses_alone(DType::kF32, kTokens);
  cross_entropy(*stream, {kTokens, kVocab, together, targets, losses, true, 0.1f});
  for (std::int64_t t = 0; t < kTokens; ++t) {
    cross_entropy(*stream,
                  {1, kVocab, Tensor(alone).part(t * kVocab, kVocab),
                   ConstTensor(targets).part(t, 1), Tensor(losses_alone).part(t, 1), true, 0.1f});
  }
  EXPECT_TRUE(test::same_bits(alone, together));
  EXPECT_TRUE(test::same_bits(losses_alone, losses));
}

TEST_P(CrossEntropy, LogitsAreScaledAndCappedAndTheirGradientsFollow) {
  constexpr std::int64_t kVocab = 300;
  for (const LogitsForm& form :
       {LogitsForm{0.25f, 0.0f}, LogitsForm{1.0f, 2.0f}, LogitsForm{3.0f, 1.5f}}) {
    const OwnedTensor logits(GetParam(), test::random_values(3 * kVocab, 1, 4.0));
    const std::vector<std::int32_t> targets{0, 17, 299};
    Values z = logits.values(), slopes(z.size());
    for (std::size_t i = 0; i < z.size(); ++i) {
      const auto scale = static_cast<double>(form.scale), cap = static_cast<double>(form.softcap);
      const double tanh = cap > 0.0 ? std::tanh(scale * z[i] / cap) : 0.0;
      z[i] = cap > 0.0 ? cap * tanh : scale * z[i];
      slopes[i] = scale * (1.0 - tanh * tanh);
    }
    oracle::Loss expected = oracle::cross_entropy(kVocab, z, targets);
    for (std::size_t i = 0; i < z.size(); ++i) expected.gradients[i] *= 0.5 * slopes[i];
    const Outputs out = test::on_any_number_of_threads([&](Stream& stream) {
      Outputs out{logits, {DType::kF32, 3}, logits};
      cross_entropy(stream, {3, kVocab, out[0], OwnedTensor(targets), out[1], true, 0.5f, form});
      shape_logits(stream, form, out[2]);
      stream.synchronize();
      return out;
    });
    test::Tolerance tolerance = test::rounded_once(GetParam());
    tolerance.absolute += 1e-6;
    EXPECT_TRUE(test::close(out[0], expected.gradients, tolerance));
    EXPECT_TRUE(test::close(out[1], expected.losses, {4e-6, 4e-6, 0.0}));
    EXPECT_TRUE(test::close(out[2], z, tolerance));
  }
}

TEST(CrossEntropyOracle, GradientIsACentralDifference) {
  const std::vector<std::int32_t> targets{2, 0, 6};
  const Values logits = test::random_values(21, 1, 3.0), direction = test::random_values(3, 2);
  Values gradients = oracle::cross_entropy(7, logits, targets).gradients;
  for (std::size_t i = 0; i < gradients.size(); ++i) gradients[i] *= direction[i / 7];
  EXPECT_TRUE(oracle::is_gradient(gradients, logits, [&](const Values& v) {
    return oracle::dot(direction, oracle::cross_entropy(7, v, targets).losses);
  }));
}

}  // namespace
}  // namespace sherd::kernels
