// Losses of a vocabulary that is cut over ranks, on a GPU: against the double oracle and the uncut kernel.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <tuple>

#include "kernels/cut_cross_entropy.h"
#include "kernels/pointwise.h"
#include "tests/kernels/taught_case.h"
#include "tests/support/devices/place.h"
#include "tests/support/oracles/oracle_token.h"

// T tokens, V vocabulary, R ranks.
namespace sherd::kernels {
namespace {

using test::Outputs;
using test::OwnedTensor;
using test::Place;
using test::random_values;
using test::Values;

class CudaCutLosses : public test::OnGpuInEveryType {};
INSTANTIATE_TEST_SUITE_P(Types, CudaCutLosses, test::compute_types(), test::type_name);

// What R ranks compute that exchange as the header says.
struct CutLosses {
  std::int64_t tokens, vocab_size;
  int num_ranks;
  LogitsForm form{};
  float z_loss = 0.0f;
  OwnedTensor* z_losses = nullptr;  ///< every rank writes the same; null: none
  const TaughtTensors* taught = nullptr;
  std::vector<OwnedTensor>* divergences = nullptr;  ///< with a teacher, of every rank

  std::int64_t first(int rank) const {
    return std::min(vocab_size, rank * ((vocab_size + num_ranks - 1) / num_ranks));
  }
  Values columns(const Values& logits, int rank) const {
    Values own;
    for (std::int64_t t = 0; t < tokens; ++t) {
      const auto row = logits.begin() + t * vocab_size;
      own.insert(own.end(), row + first(rank), row + first(rank + 1));
    }
    return own;
  }
  /// For each rank: what its logits become, and its losses.
  Outputs compute(Place& place, DType dtype, const Values& logits, const OwnedTensor& targets,
                  bool gradient, float grad_scale) const {
    Outputs out;
    for (int r = 0; r < num_ranks; ++r) {
      out.emplace_back(dtype, columns(logits, r));
      out.emplace_back(DType::kF32, tokens);
    }
    const std::int64_t sums_of_ranks = (taught == nullptr ? 2 : 4) * tokens;
    OwnedTensor zeros(DType::kF32, Values(static_cast<std::size_t>(sums_of_ranks), 0.0));
    OwnedTensor maxima(DType::kF32, num_ranks * tokens), part(DType::kF32, sums_of_ranks);
    const Tensor sums = place.out(zeros);
    CutCrossEntropy all;
    all.tokens = tokens;
    all.num_ranks = num_ranks;
    all.targets = place.in(targets);
    all.maxima = place.out(maxima);
    all.sums = place.out(part);
    all.gradient = gradient;
    all.grad_scale = grad_scale;
    all.form = form;
    if (z_losses != nullptr) all.z_loss = {z_loss, place.out(*z_losses)};
    if (taught != nullptr) all.teacher = taught->on(place);
    std::vector<CutCrossEntropy> ranks(static_cast<std::size_t>(num_ranks), all);
    for (int r = 0; r < num_ranks; ++r) {
      CutCrossEntropy& rank = ranks[static_cast<std::size_t>(r)];
      rank.num_rows = first(r + 1) - first(r);
      rank.rows = {first(r), vocab_size};
      rank.rank = r;
      rank.logits = place.out(out[static_cast<std::size_t>(2 * r)]);
      rank.losses = place.out(out[static_cast<std::size_t>(2 * r + 1)]);
      if (taught != nullptr) {
        rank.teacher.divergences = place.out((*divergences)[static_cast<std::size_t>(r)]);
      }
      logit_maxima(place.stream(), rank);
    }
    for (const CutCrossEntropy& rank : ranks) {
      exponential_sums(place.stream(), rank);
      add(place.stream(), rank.sums, sums);
    }
    for (CutCrossEntropy& rank : ranks) {
      rank.sums = sums;
      cut_cross_entropy(place.stream(), rank);
    }
    place.finish();
    return out;
  }
  /// [T, V] again.
  Values together(const Outputs& out) const {
    Values all(static_cast<std::size_t>(tokens * vocab_size));
    for (int r = 0; r < num_ranks; ++r) {
      const Values own = out[static_cast<std::size_t>(2 * r)].values();
      const std::int64_t width = first(r + 1) - first(r);
      for (std::int64_t i = 0; i < tokens * width; ++i) {
        all[static_cast<std::size_t>(i / width * vocab_size + first(r) + i % width)] =
            own[static_cast<std::size_t>(i)];
      }
    }
    return all;
  }
};

TEST_P(CudaCutLosses, LossesOfACutVocabularyMatchTheOracleOnAnyNumberOfRanks) {
  const DType type = GetParam();
  for (const auto& [tokens, vocab_size, num_ranks] :
       {std::tuple{1, 1, 1}, {1, 7, 7}, {5, 2, 2}, {13, 64, 4}, {33, 201, 2}, {3, 50257, 4}}) {
    SCOPED_TRACE(fmt::format("T {} V {} R {}", tokens, vocab_size, num_ranks));
    const CutLosses cut{tokens, vocab_size, num_ranks};
    const Values logits =
        test::rounded(type, random_values(std::int64_t{tokens} * vocab_size, 2, 8.0));
    std::vector<std::int32_t> ids = test::random_tokens(tokens, vocab_size, 1);
    oracle::Loss expected = oracle::cross_entropy(vocab_size, logits, ids);
    if (tokens > 1) {  // a row without a target
      ids[1] = kNoTarget;
      expected.losses[1] = 0.0;
      std::fill_n(expected.gradients.begin() + vocab_size, vocab_size, 0.0);
    }
    const OwnedTensor targets(ids);
    for (const bool gradient : {true, false}) {
      const Outputs out = test::on_gpu([&](Place& place) {
        return cut.compute(place, type, logits, targets, gradient, 0.125f);
      });
      for (int r = 0; r < num_ranks; ++r) {
        const OwnedTensor& losses = out[static_cast<std::size_t>(2 * r + 1)];
        EXPECT_TRUE(test::close(losses, expected.losses, {4e-6, 4e-6, 4e-6}));
        EXPECT_TRUE(test::same_bits(losses, out[1])) << "rank " << r;
      }
      if (!gradient) {
        EXPECT_EQ(cut.together(out), logits);
        continue;
      }
      Values scaled = expected.gradients;
      for (double& value : scaled) value *= 0.125;
      test::Tolerance tolerance = test::rounded_once(type);
      tolerance.absolute += 1e-7;
      EXPECT_TRUE(test::close(cut.together(out), scaled, tolerance));
    }
  }
}

TEST_P(CudaCutLosses, LossesOfScaledAndCappedLogitsAreTheUncutKernels) {
  const DType type = GetParam();
  for (const LogitsForm& form : {LogitsForm{0.25f, 0.0f}, LogitsForm{0.5f, 3.0f}}) {
    const CutLosses cut{9, 77, 4, form};
    const Values logits = test::rounded(type, random_values(9 * 77, 2, 8.0));
    const OwnedTensor targets(test::random_tokens(9, 77, 1));
    const Outputs parts = test::on_gpu(
        [&](Place& place) { return cut.compute(place, type, logits, targets, true, 0.5f); });
    const Outputs whole = test::on_gpu([&](Place& place) {
      Outputs out{{type, logits}, {DType::kF32, 9}};
      cross_entropy(place.stream(), {.tokens = 9,
                                     .vocab_size = 77,
                                     .logits = place.out(out[0]),
                                     .targets = place.in(targets),
                                     .losses = place.out(out[1]),
                                     .gradient = true,
                                     .grad_scale = 0.5f,
                                     .form = form});
      place.finish();
      return out;
    });
    EXPECT_TRUE(test::close(parts[1], whole[1].values(), {4e-6, 4e-6, 4e-6}));
    test::Tolerance tolerance = test::rounded_once(type);
    tolerance.absolute += 1e-7;
    EXPECT_TRUE(test::close(cut.together(parts), whole[0].values(), tolerance));
  }
}

TEST_P(CudaCutLosses, ZLossesAreTheUncutKernels) {
  const DType type = GetParam();
  CutLosses cut{9, 77, 4, {0.5f, 3.0f}};
  const Values logits = test::rounded(type, random_values(9 * 77, 2, 8.0));
  std::vector<std::int32_t> ids = test::random_tokens(9, 77, 1);
  ids[2] = kNoTarget;
  const OwnedTensor targets(ids);
  cut.z_loss = 0.05f;
  OwnedTensor z_losses(DType::kF32, 9);
  cut.z_losses = &z_losses;
  const Outputs parts = test::on_gpu(
      [&](Place& place) { return cut.compute(place, type, logits, targets, true, 0.5f); });
  const Outputs whole = test::on_gpu([&](Place& place) {
    Outputs out{{type, logits}, {DType::kF32, 9}, {DType::kF32, 9}};
    cross_entropy(place.stream(), {.tokens = 9,
                                   .vocab_size = 77,
                                   .logits = place.out(out[0]),
                                   .targets = place.in(targets),
                                   .losses = place.out(out[1]),
                                   .gradient = true,
                                   .grad_scale = 0.5f,
                                   .form = cut.form,
                                   .z_loss = {0.05f, place.out(out[2])}});
    place.finish();
    return out;
  });
  EXPECT_TRUE(test::close(z_losses, whole[2].values(), {1e-5, 1e-6, 1e-6}));
  test::Tolerance tolerance = test::rounded_once(type);
  tolerance.absolute += 1e-6;
  EXPECT_TRUE(test::close(cut.together(parts), whole[0].values(), tolerance));
}

// One logit dwarfs the others, on another rank than its target's or on its own; broken ones reach every rank's loss.
TEST_P(CudaCutLosses, LossesDontOverflowAndABrokenLogitReachesEveryRank) {
  const DType type = GetParam();
  const CutLosses cut{3, 4, 2};
  const double large = test::rounded(type, type == DType::kF16 ? 6e4 : 1e30);
  const Values logits{large, 0.0, -large, 1.0,    1.0,    -large,
                      large, 0.0, -large, -large, -large, -large};
  const OwnedTensor targets(std::vector<std::int32_t>{2, 1, 3});
  const auto losses_of = [&](const Values& of) {
    return test::on_gpu(
        [&](Place& place) { return cut.compute(place, type, of, targets, true, 1.0f); });
  };
  const Outputs out = losses_of(logits);
  EXPECT_TRUE(test::close(out[1], {2.0 * large, 2.0 * large, std::log(4.0)}, {4e-6, 0.0, 4e-6}));
  EXPECT_TRUE(test::close(cut.together(out),
                          {1.0, 0.0, -1.0, 0.0, 0.0, -1.0, 1.0, 0.0, 0.25, 0.25, 0.25, -0.75},
                          {1e-6, 0.0, 0.0}));
  for (const double bad : {std::nan(""), std::numeric_limits<double>::infinity()}) {
    Values broken = logits;
    broken[1] = bad;
    const Outputs of_ranks = losses_of(broken);
    EXPECT_FALSE(std::isfinite(of_ranks[1].values()[0]));
    EXPECT_FALSE(std::isfinite(of_ranks[3].values()[0]));
  }
}

TEST_P(CudaCutLosses, ATeachersGradientsAreTheCpus) {
  const DType type = GetParam();
  for (const TaughtCase& c : kTaughtCases) {
    SCOPED_TRACE(fmt::format("V {} K {}", c.vocab_size, c.top));
    const Values logits = test::rounded(type, random_values(c.tokens * c.vocab_size, 2, 8.0));
    const OwnedTensor targets(c.targets());
    const TaughtTensors taught(c);
    const auto outputs = [&](auto on_device) {
      std::vector<OwnedTensor> divergences(2, OwnedTensor(DType::kF32, c.tokens));
      CutLosses cut{c.tokens, c.vocab_size, 2};
      cut.form = c.form;
      cut.taught = &taught;
      cut.divergences = &divergences;
      Outputs out = on_device(
          [&](Place& place) { return cut.compute(place, type, logits, targets, true, 0.125f); });
      for (const OwnedTensor& of_rank : divergences) out.push_back(of_rank);
      return out;
    };
    const Outputs gpu = outputs([](const test::Work& work) { return test::on_gpu(work); });
    const Outputs cpu = outputs([](const test::Work& work) { return test::on_cpu(work); });
    for (const std::size_t rank : {0u, 1u}) {
      expect_taught(type, {gpu[2 * rank], gpu[2 * rank + 1], gpu[4 + rank]},
                    {cpu[2 * rank], cpu[2 * rank + 1], cpu[4 + rank]});
    }
  }
}

}  // namespace
}  // namespace sherd::kernels
