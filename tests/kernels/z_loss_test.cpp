// The z-loss of cross-entropy, with all logits of a token and with a vocabulary that ranks divide.
#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>

#include "kernels/cut_cross_entropy.h"
#include "tests/support/oracles/oracle_token.h"
#include "tests/support/values/tensors.h"
#include "tests/where.h"

// T tokens, V vocabulary.
namespace sherd::kernels {
namespace {

using test::Outputs;
using test::OwnedTensor;
using test::Values;

struct ZLossCase {
  std::int64_t vocab = 0;
  Values logits;  // [T, V]
  std::vector<std::int32_t> targets;
  float c = 0.0f, grad_scale = 1.0f;
  LogitsForm form{};

  std::int64_t tokens() const { return std::ssize(targets); }
};

enum Output : std::size_t { kLosses, kZLosses, kGradients };

Outputs compute(Stream& stream, DType dtype, const ZLossCase& c, bool gradient = true) {
  Outputs out{{DType::kF32, c.tokens()}, {DType::kF32, c.tokens()}, {dtype, c.logits}};
  cross_entropy(stream, {.tokens = c.tokens(),
                         .vocab_size = c.vocab,
                         .logits = out[kGradients],
                         .targets = OwnedTensor(c.targets),
                         .losses = out[kLosses],
                         .gradient = gradient,
                         .grad_scale = c.grad_scale,
                         .form = c.form,
                         .z_loss = {c.c, c.c == 0.0f ? Tensor{} : Tensor(out[kZLosses])}});
  stream.synchronize();
  return out;
}

// The same on two ranks: the first has `first_rows` of the vocabulary's rows.
Outputs compute_cut(Stream& stream, DType dtype, const ZLossCase& c, std::int64_t first_rows) {
  const std::int64_t T = c.tokens();
  const OwnedTensor targets(c.targets);
  OwnedTensor maxima(DType::kF32, 2 * T), part(DType::kF32, 2 * T);
  const auto first_of = [&](int rank) { return rank == 0 ? 0 : rank == 1 ? first_rows : c.vocab; };
  Outputs logits, losses, z_losses;
  for (const int rank : {0, 1}) {
    Values own;
    for (std::int64_t t = 0; t < T; ++t) {
      const auto row = c.logits.begin() + t * c.vocab;
      own.insert(own.end(), row + first_of(rank), row + first_of(rank + 1));
    }
    logits.emplace_back(dtype, own);
    losses.emplace_back(DType::kF32, T);
    z_losses.emplace_back(DType::kF32, T);
  }
  std::vector<CutCrossEntropy> ranks;
  for (const int rank : {0, 1}) {
    const auto at = static_cast<std::size_t>(rank);
    ranks.push_back({.tokens = T,
                     .num_rows = first_of(rank + 1) - first_of(rank),
                     .rows = {first_of(rank), c.vocab},
                     .num_ranks = 2,
                     .rank = rank,
                     .logits = logits[at],
                     .targets = targets,
                     .maxima = maxima,
                     .sums = part,
                     .losses = losses[at],
                     .grad_scale = c.grad_scale,
                     .form = c.form,
                     .z_loss = {c.c, z_losses[at]}});
    logit_maxima(stream, ranks.back());
  }
  Values added(static_cast<std::size_t>(2 * T), 0.0);
  for (const CutCrossEntropy& rank : ranks) {
    exponential_sums(stream, rank);
    stream.synchronize();
    const Values own = part.values();
    for (std::size_t i = 0; i < own.size(); ++i) added[i] += own[i];
  }
  OwnedTensor sums(DType::kF32, added);
  for (CutCrossEntropy& rank : ranks) {
    rank.sums = sums;
    cut_cross_entropy(stream, rank);
  }
  stream.synchronize();
  EXPECT_TRUE(test::same_bits(z_losses[0], z_losses[1]));
  Values together;
  for (std::int64_t t = 0; t < T; ++t) {
    for (const CutCrossEntropy& rank : ranks) {
      const Values own = logits[static_cast<std::size_t>(rank.rank)].values();
      const auto row = own.begin() + t * rank.num_rows;
      together.insert(together.end(), row, row + rank.num_rows);
    }
  }
  return {losses[1], z_losses[1], {dtype, together}};
}

// log-sum-exp in f32 is right to 4e-6.
void expect_close(const Outputs& out, DType dtype, const Values& losses, const Values& z_losses,
                  const Values& gradients) {
  EXPECT_TRUE(test::close(out[kLosses], losses, {4e-6, 4e-6, 2e-6}));
  EXPECT_TRUE(test::close(out[kZLosses], z_losses, {1e-5, 1e-7, 1e-7}));
  test::Tolerance tolerance = test::rounded_once(dtype);
  tolerance.absolute += 2e-6;
  EXPECT_TRUE(test::close(out[kGradients], gradients, tolerance));
}

class ZLosses : public testing::TestWithParam<DType> {};
INSTANTIATE_TEST_SUITE_P(Types, ZLosses, test::compute_types(), test::type_name);

// TRAINING.md C.11: c = 1e-4. A gradient is what the z-loss adds to that of the loss.
TEST(ZLoss, HasTheValuesOfItsDefinition) {
  const auto stream = test::compute_stream();
  const auto added = [&](Values logits, double z_loss, const Values& gradient) {
    ZLossCase c{std::ssize(logits), logits, {0}, 0.0f};
    const Values without = compute(*stream, DType::kF32, c)[kGradients].values();
    c.c = 1e-4f;
    const Outputs with = compute(*stream, DType::kF32, c);
    EXPECT_NEAR(with[kZLosses].values()[0], z_loss, 1e-6 * z_loss);
    for (std::size_t i = 0; i < gradient.size(); ++i) {
      EXPECT_NEAR(with[kGradients].values()[i] - without[i], gradient[i], 1.2e-7) << i;
    }
  };
  added({0, 0}, 4.80453e-5, {6.93147e-5, 6.93147e-5});
  added({1, 2, 3}, 1.161178e-3, {6.13577e-5, 1.66788e-4, 4.53376e-4});
}

TEST_P(ZLosses, AndTheirGradientsAreTorchsWholeAndCut) {
  std::ifstream file(std::string(SHERD_SOURCE_DIR) + "/tests/reference/stability.json");
  const nlohmann::json reference = nlohmann::json::parse(file);
  ASSERT_EQ(reference.at("z_loss").size(), 5u);
  for (const auto& expected : reference.at("z_loss")) {
    ZLossCase c;
    c.vocab = expected["vocab"];
    c.targets = expected["targets"].get<std::vector<std::int32_t>>();
    c.c = expected["c"];
    c.grad_scale = expected["grad_scale"];
    c.form = {expected["scale"], expected["softcap"]};
    for (std::int64_t i = 0; i < c.tokens() * c.vocab; ++i) {
      c.logits.push_back(static_cast<double>(i * 37 % 61 - 30) / 8.0);
    }
    const Values losses = expected["losses"], z_losses = expected["z_losses"],
                 gradients = expected["gradients"];
    const Outputs whole = test::on_any_number_of_threads(
        [&](Stream& stream) { return compute(stream, GetParam(), c); });
    expect_close(whole, GetParam(), losses, z_losses, gradients);
    const Outputs cut = test::on_any_number_of_threads(
        [&](Stream& stream) { return compute_cut(stream, GetParam(), c, (c.vocab + 1) / 2); });
    expect_close(cut, GetParam(), losses, z_losses, gradients);
  }
}

TEST_P(ZLosses, MatchTheOracleOnLongRows) {
  ZLossCase c{5003, test::random_values(3 * 5003, 1, 5.0), {7, kNoTarget, 5002}, 0.01f, 0.37f};
  c.logits = test::rounded(GetParam(), c.logits);
  const std::vector<std::int32_t> some{7, 0, 5002};
  oracle::Loss loss = oracle::cross_entropy(c.vocab, c.logits, some);
  const oracle::Loss z = oracle::z_loss(c.vocab, c.logits, static_cast<double>(c.c));
  Values z_losses = z.losses, gradients;
  for (std::size_t i = 0; i < c.logits.size(); ++i) {
    gradients.push_back(static_cast<double>(c.grad_scale) * (loss.gradients[i] + z.gradients[i]));
  }
  loss.losses[1] = z_losses[1] = 0.0;
  std::fill_n(gradients.begin() + c.vocab, c.vocab, 0.0);
  const auto stream = test::compute_stream(3);
  expect_close(compute(*stream, GetParam(), c), GetParam(), loss.losses, z_losses, gradients);
  expect_close(compute_cut(*stream, GetParam(), c, 1234), GetParam(), loss.losses, z_losses,
               gradients);
}

TEST_P(ZLosses, ChangeNeitherTheLossNorLogitsThatStay) {
  const ZLossCase without{75, test::random_values(6 * 75, 1, 3.0), test::random_tokens(6, 75, 2)};
  ZLossCase with = without;
  with.c = 0.1f;
  const auto stream = test::compute_stream(2);
  const Outputs a = compute(*stream, GetParam(), without), b = compute(*stream, GetParam(), with);
  EXPECT_TRUE(test::same_bits(a[kLosses], b[kLosses]));
  EXPECT_FALSE(test::same_bits(a[kGradients], b[kGradients]));
  const Outputs kept = compute(*stream, GetParam(), with, false);
  EXPECT_TRUE(test::same_bits(kept[kZLosses], b[kZLosses]));
  EXPECT_TRUE(test::same_bits(kept[kGradients], OwnedTensor(GetParam(), with.logits)));
}

TEST(ZLossOracle, GradientIsACentralDifference) {
  const Values logits = test::random_values(21, 1, 3.0), direction = test::random_values(3, 2);
  Values gradients = oracle::z_loss(7, logits, 0.5).gradients;
  for (std::size_t i = 0; i < gradients.size(); ++i) gradients[i] *= direction[i / 7];
  EXPECT_TRUE(oracle::is_gradient(gradients, logits, [&](const Values& v) {
    return oracle::dot(direction, oracle::z_loss(7, v, 0.5).losses);
  }));
}

}  // namespace
}  // namespace sherd::kernels
