#include "kernels/cut_cross_entropy.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <tuple>

#include "tests/support/oracles/oracle_token.h"
#include "tests/support/values/tensors.h"

// T tokens, V vocabulary, R ranks.
namespace sherd::kernels {
namespace {

using test::Outputs;
using test::OwnedTensor;
using test::Values;

struct Case {
  std::int64_t tokens, vocab_size;
  int num_ranks;
  Values logits;  // [T, V]
  std::vector<std::int32_t> targets;
  LogitsForm form{};

  std::int64_t rows() const { return (vocab_size + num_ranks - 1) / num_ranks; }
  std::int64_t first(int rank) const { return std::min(vocab_size, rank * rows()); }
  Values columns(int rank) const {
    Values own;
    for (std::int64_t t = 0; t < tokens; ++t) {
      const auto row = logits.begin() + t * vocab_size;
      own.insert(own.end(), row + first(rank), row + first(rank + 1));
    }
    return own;
  }
};

// What R ranks compute that exchange as the header says: each one's losses, and what its logits become.
struct Ranks {
  Ranks(DType dtype, const Case& c)
      : targets(c.targets), maxima(DType::kF32, c.num_ranks * c.tokens) {
    for (int r = 0; r < c.num_ranks; ++r) {
      logits.emplace_back(dtype, c.columns(r));
      losses.emplace_back(DType::kF32, c.tokens);
    }
  }
  void compute(Stream& stream, const Case& c, bool gradient, float grad_scale) {
    std::vector<CutCrossEntropy> ranks;
    OwnedTensor part(DType::kF32, 2 * c.tokens);
    for (int r = 0; r < c.num_ranks; ++r) {
      const auto at = static_cast<std::size_t>(r);
      const VocabularyRows rows{c.first(r), c.vocab_size};
      ranks.push_back({c.tokens, c.first(r + 1) - c.first(r), rows, c.num_ranks, r, logits[at],
                       targets, maxima, part, losses[at], gradient, grad_scale, c.form});
      logit_maxima(stream, ranks.back());
    }
    Values sums(static_cast<std::size_t>(2 * c.tokens));
    for (const CutCrossEntropy& rank : ranks) {
      exponential_sums(stream, rank);
      const Values own = part.values();
      for (std::size_t i = 0; i < sums.size(); ++i)
        sums[i] = test::rounded(DType::kF32, sums[i] + own[i]);
    }
    OwnedTensor added(DType::kF32, sums);
    for (CutCrossEntropy& rank : ranks) {
      rank.sums = added;
      cut_cross_entropy(stream, rank);
    }
  }
  // [T, V] again.
  Values together(const Case& c) const {
    Values all(static_cast<std::size_t>(c.tokens * c.vocab_size));
    for (int r = 0; r < c.num_ranks; ++r) {
      const Values own = logits[static_cast<std::size_t>(r)].values();
      const std::int64_t width = c.first(r + 1) - c.first(r);
      for (std::int64_t i = 0; i < c.tokens * width; ++i) {
        all[static_cast<std::size_t>(i / width * c.vocab_size + c.first(r) + i % width)] =
            own[static_cast<std::size_t>(i)];
      }
    }
    return all;
  }

  OwnedTensor targets, maxima;
  Outputs logits, losses;
};

class CutCrossEntropies : public testing::TestWithParam<DType> {};
INSTANTIATE_TEST_SUITE_P(Types, CutCrossEntropies, test::compute_types(), test::type_name);

Case random_case(DType dtype, std::int64_t tokens, std::int64_t vocab_size, int num_ranks) {
  return {tokens, vocab_size, num_ranks,
          test::rounded(dtype, test::random_values(tokens * vocab_size, 1, 5.0)),
          test::random_tokens(tokens, vocab_size, 2)};
}

TEST_P(CutCrossEntropies, MatchTheOracleOnAnyNumberOfRanksAndThreads) {
  const float grad_scale = 0.37f;
  for (const auto& [tokens, vocab_size, num_ranks] :
       {std::tuple{1, 1, 1}, {1, 7, 7}, {5, 2, 2}, {13, 65, 4}, {130, 201, 2}, {7, 5003, 8}}) {
    SCOPED_TRACE(fmt::format("T {} V {} R {}", tokens, vocab_size, num_ranks));
    const Case c = random_case(GetParam(), tokens, vocab_size, num_ranks);
    Values together;
    const Outputs losses = test::on_any_number_of_threads([&](Stream& stream) {
      Ranks ranks(GetParam(), c);
      ranks.compute(stream, c, true, grad_scale);
      together = ranks.together(c);
      return ranks.losses;
    });
    const oracle::Loss expected = oracle::cross_entropy(vocab_size, c.logits, c.targets);
    EXPECT_TRUE(test::close(losses[0], expected.losses, {4e-6, 4e-6, 2e-6}));
    for (const OwnedTensor& of_rank : losses) EXPECT_TRUE(test::same_bits(of_rank, losses[0]));
    Values gradients = expected.gradients;
    for (double& gradient : gradients) gradient *= static_cast<double>(grad_scale);
    test::Tolerance tolerance = test::rounded_once(GetParam());
    tolerance.absolute += 1e-6;
    EXPECT_TRUE(test::close(together, gradients, tolerance));
  }
}

TEST_P(CutCrossEntropies, AgreeWithTheUncutKernelOnScaledAndCappedLogits) {
  Case c = random_case(GetParam(), 9, 77, 4);
  c.form = {0.5f, 3.0f};
  const auto stream = test::compute_stream();
  Ranks ranks(GetParam(), c);
  ranks.compute(*stream, c, true, 0.5f);
  OwnedTensor whole(GetParam(), c.logits), losses(DType::kF32, c.tokens);
  cross_entropy(*stream,
                {c.tokens, c.vocab_size, whole, ranks.targets, losses, true, 0.5f, c.form});
  EXPECT_TRUE(test::close(ranks.losses[3], losses.values(), {4e-6, 4e-6, 2e-6}));
  test::Tolerance tolerance = test::rounded_once(GetParam());
  tolerance.absolute += 1e-6;
  EXPECT_TRUE(test::close(ranks.together(c), whole.values(), tolerance));
}

TEST_P(CutCrossEntropies, WithoutGradientLogitsStayAndATokenWithoutATargetHasNoLoss) {
  Case c = random_case(GetParam(), 6, 10, 3);
  c.targets[2] = kNoTarget;
  const auto stream = test::compute_stream();
  Ranks losses_only(GetParam(), c), both(GetParam(), c);
  losses_only.compute(*stream, c, false, 1.0f);
  both.compute(*stream, c, true, 1.0f);
  EXPECT_EQ(losses_only.together(c), c.logits);
  EXPECT_TRUE(test::same_bits(losses_only.losses[0], both.losses[0]));
  const Values gradients = both.together(c);
  EXPECT_EQ(both.losses[1].values()[2], 0.0);
  EXPECT_EQ(Values(gradients.begin() + 20, gradients.begin() + 30), Values(10, 0.0));
}

// A logit that dwarfs the others, before and after its target's rank, and the same on all ranks.
TEST_P(CutCrossEntropies, DontOverflow) {
  const double large = test::rounded(GetParam(), GetParam() == DType::kF16 ? 6e4 : 1e30);
  const Values logits{large, 0.0, -large, 1.0,    1.0,    -large,
                      large, 0.0, -large, -large, -large, -large};
  const Case c{3, 4, 2, logits, {2, 1, 3}};
  Ranks ranks(GetParam(), c);
  ranks.compute(*test::compute_stream(), c, true, 1.0f);
  EXPECT_TRUE(
      test::close(ranks.losses[0], {2.0 * large, 2.0 * large, std::log(4.0)}, {4e-6, 0.0, 4e-6}));
  EXPECT_TRUE(test::close(ranks.together(c),
                          {1.0, 0.0, -1.0, 0.0, 0.0, -1.0, 1.0, 0.0, 0.25, 0.25, 0.25, -0.75},
                          {1e-6, 0.0, 0.0}));
}

// A run stops at a loss that is not finite: a broken logit must reach every rank's.
TEST_P(CutCrossEntropies, OfABrokenLogitAreNotFiniteOnAnyRank) {
  for (const double bad : {std::nan(""), std::numeric_limits<double>::infinity()}) {
    Case c = random_case(GetParam(), 1, 12, 4);
    c.logits[7] = bad;
    Ranks ranks(GetParam(), c);
    ranks.compute(*test::compute_stream(), c, true, 1.0f);
    for (const OwnedTensor& losses : ranks.losses) EXPECT_FALSE(std::isfinite(losses.values()[0]));
  }
}

}  // namespace
}  // namespace sherd::kernels
