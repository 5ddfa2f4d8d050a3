// Cross-entropy with a weight for each token: its row is that of the token alone with the scale
// times the weight.
#include <gtest/gtest.h>

#include "kernels/cut_cross_entropy.h"
#include "tests/support/oracles/oracle_token.h"
#include "tests/support/values/tensors.h"

// T tokens, V vocabulary.
namespace sherd::kernels {
namespace {

using test::OwnedTensor;
using test::Values;

constexpr std::int64_t kTokens = 5, kVocab = 700;
constexpr float kScale = 0.25f;
const Values kWeights = {0.5, -2.0, 0.0, 1.0, -0.125};  // products with the scale are exact
const std::vector<std::int32_t> kTargets = {3, 699, 0, kNoTarget, 41};

Values row_of(const Values& logits, std::int64_t token) {
  return {logits.begin() + token * kVocab, logits.begin() + (token + 1) * kVocab};
}

// Losses, then gradients.
std::pair<Values, Values> whole(Stream& stream, DType dtype, const Values& logits,
                                const std::vector<std::int32_t>& targets, float scale,
                                const Values& weights) {
  const auto tokens = std::ssize(targets);
  OwnedTensor x(dtype, logits), losses(DType::kF32, tokens), ids(targets);
  OwnedTensor w(DType::kF32, weights.empty() ? Values(1) : weights);
  cross_entropy(stream, {.tokens = tokens,
                         .vocab_size = kVocab,
                         .logits = x,
                         .targets = ids,
                         .losses = losses,
                         .grad_scale = scale,
                         .weights = weights.empty() ? ConstTensor() : ConstTensor(Tensor(w))});
  stream.synchronize();
  return {losses.values(), x.values()};
}

std::pair<Values, Values> cut(Stream& stream, DType dtype, const Values& logits,
                              const std::vector<std::int32_t>& targets, float scale,
                              const Values& weights) {
  const auto tokens = std::ssize(targets);
  OwnedTensor x(dtype, logits), losses(DType::kF32, tokens), ids(targets);
  OwnedTensor maxima(DType::kF32, tokens), sums(DType::kF32, 2 * tokens);
  OwnedTensor w(DType::kF32, weights.empty() ? Values(1) : weights);
  const CutCrossEntropy args{.tokens = tokens,
                             .num_rows = kVocab,
                             .rows = {0, kVocab},
                             .logits = x,
                             .targets = ids,
                             .maxima = maxima,
                             .sums = sums,
                             .losses = losses,
                             .grad_scale = scale,
                             .weights = weights.empty() ? ConstTensor() : ConstTensor(Tensor(w))};
  logit_maxima(stream, args);
  exponential_sums(stream, args);
  cut_cross_entropy(stream, args);
  stream.synchronize();
  return {losses.values(), x.values()};
}

template <class Compute>
void expect_rows_of_tokens_alone(const Compute& compute) {
  const auto stream = test::compute_stream();
  for (const DType dtype : {DType::kF32, DType::kBF16, DType::kF16}) {
    const Values logits = OwnedTensor(dtype, test::random_values(kTokens * kVocab, 7)).values();
    const auto [losses, gradients] = compute(*stream, dtype, logits, kTargets, kScale, kWeights);
    const auto plain = compute(*stream, dtype, logits, kTargets, kScale, Values{});
    EXPECT_EQ(losses, plain.first) << "losses have no weights";
    for (std::int64_t t = 0; t < kTokens; ++t) {
      const auto at = static_cast<std::size_t>(t);
      const auto alone = compute(*stream, dtype, row_of(logits, t), {kTargets[at]},
                                 kScale * static_cast<float>(kWeights[at]), Values{});
      EXPECT_EQ(row_of(gradients, t), alone.second) << name_of(dtype) << ", token " << t;
    }
  }
}

TEST(TokenWeights, ScaleTheGradientsOfTheirTokens) {
  expect_rows_of_tokens_alone(whole);
}

TEST(TokenWeights, ScaleThemWhereRanksDivideTheVocabulary) {
  expect_rows_of_tokens_alone(cut);
}

}  // namespace
}  // namespace sherd::kernels
