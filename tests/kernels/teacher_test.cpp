// Cross-entropy with a teacher, against double precision and torchtune's published value.
#include "kernels/teacher.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "kernels/cut_cross_entropy.h"
#include "tests/support/oracles/oracle_token.h"
#include "tests/support/values/tensors.h"

// T tokens, V vocabulary, K of the teacher's tokens.
namespace sherd::kernels {
namespace {

using test::OwnedTensor;
using test::Values;
using Ids = std::vector<std::int32_t>;

struct TeacherCase {
  std::int64_t vocab_size = 0;
  Values logits;  // [T, V]
  Ids targets;
  TeacherForm form{};
  Ids ids{};               // [T, K]
  Values probabilities{};  // [T, K]
  float scale = 1.0f;
  LogitsForm shape{};

  std::int64_t tokens() const { return std::ssize(targets); }
};
struct Result {
  Values losses, divergences, gradients;
};

Result whole(DType dtype, const TeacherCase& c) {
  const auto stream = test::compute_stream();
  OwnedTensor x(dtype, c.logits), losses(DType::kF32, c.tokens()), targets(c.targets), ids(c.ids);
  OwnedTensor p(DType::kF32, c.probabilities), divergences(DType::kF32, c.tokens());
  cross_entropy(*stream, {.tokens = c.tokens(),
                          .vocab_size = c.vocab_size,
                          .logits = x,
                          .targets = targets,
                          .losses = losses,
                          .grad_scale = c.scale,
                          .form = c.shape,
                          .teacher = {c.form, ids, p, divergences}});
  stream->synchronize();
  return {losses.values(), divergences.values(), x.values()};
}

// Ranks with an equal number of rows; `groups` in all.
Result cut(DType dtype, const TeacherCase& c, int num_ranks, int groups) {
  const auto stream = test::compute_stream();
  const std::int64_t T = c.tokens(), rows = c.vocab_size / num_ranks;
  OwnedTensor targets(c.targets), ids(c.ids), p(DType::kF32, c.probabilities);
  OwnedTensor maxima(DType::kF32, num_ranks * T);
  std::vector<OwnedTensor> x, losses, divergences, sums;
  std::vector<CutCrossEntropy> ranks;
  for (int r = 0; r < num_ranks; ++r) {
    Values own;
    for (std::int64_t t = 0; t < T; ++t) {
      const auto row = c.logits.begin() + t * c.vocab_size + r * rows;
      own.insert(own.end(), row, row + rows);
    }
    x.emplace_back(dtype, own);
    losses.emplace_back(DType::kF32, T);
    divergences.emplace_back(DType::kF32, T);
    sums.emplace_back(DType::kF32, 4 * T);
  }
  for (int r = 0; r < num_ranks; ++r) {
    const auto at = static_cast<std::size_t>(r);
    ranks.push_back({.tokens = T,
                     .num_rows = rows,
                     .rows = {r * rows, c.vocab_size},
                     .num_ranks = num_ranks,
                     .rank = r,
                     .logits = x[at],
                     .targets = targets,
                     .maxima = maxima,
                     .sums = sums[at],
                     .losses = losses[at],
                     .grad_scale = c.scale,
                     .form = c.shape,
                     .groups = groups / num_ranks,
                     .rows_of_a_group = c.vocab_size / groups,
                     .teacher = {c.form, ids, p, divergences[at]}});
    logit_maxima(*stream, ranks.back());
  }
  std::vector<Values> added;
  for (const CutCrossEntropy& rank : ranks) {
    exponential_sums(*stream, rank);
    stream->synchronize();
    added.push_back(sums[static_cast<std::size_t>(rank.rank)].values());
  }
  while (added.size() > 1) {  // a tree, as canonical sums are
    std::vector<Values> half;
    for (std::size_t r = 0; r < added.size(); r += 2) {
      half.push_back(added[r]);
      for (std::size_t i = 0; i < half.back().size(); ++i) {
        half.back()[i] = test::rounded(DType::kF32, added[r][i] + added[r + 1][i]);
      }
    }
    added = half;
  }
  OwnedTensor all(DType::kF32, added[0]);
  Result result{{}, {}, Values(c.logits.size())};
  for (CutCrossEntropy& rank : ranks) {
    rank.sums = all;
    cut_cross_entropy(*stream, rank);
    stream->synchronize();
    const auto at = static_cast<std::size_t>(rank.rank);
    if (rank.rank > 0) {
      EXPECT_EQ(losses[at].values(), losses[0].values());
      EXPECT_EQ(divergences[at].values(), divergences[0].values());
    }
    const Values own = x[at].values();
    for (std::int64_t i = 0; i < T * rows; ++i) {
      result.gradients[static_cast<std::size_t>(i / rows * c.vocab_size + rank.rank * rows +
                                                i % rows)] = own[static_cast<std::size_t>(i)];
    }
  }
  result.losses = losses[0].values();
  result.divergences = divergences[0].values();
  return result;
}

// kernels/teacher.h in double precision.
Result expected(const TeacherCase& c) {
  const auto V = static_cast<std::size_t>(c.vocab_size);
  const auto K = static_cast<std::size_t>(c.form.top);
  Result out{Values(c.targets.size()), Values(c.targets.size()), Values(c.logits.size())};
  for (std::size_t t = 0; t < c.targets.size(); ++t) {
    if (c.targets[t] == kNoTarget) continue;
    Values z(V), slope(V, c.shape.scale);
    for (std::size_t v = 0; v < V; ++v) {
      z[v] = c.shape.scale * c.logits[t * V + v];
      if (c.shape.softcap > 0.0f) {
        const double tanh = std::tanh(z[v] / c.shape.softcap);
        z[v] = c.shape.softcap * tanh;
        slope[v] *= 1.0 - tanh * tanh;
      }
    }
    const double s = c.form.temperature, w = c.form.weight;
    const auto lse = [&](double divisor) {
      double sum = 0.0;
      for (const double value : z) sum += std::exp(value / divisor);
      return std::log(sum);
    };
    const double plain = lse(1.0), tempered = lse(s);
    const auto target = static_cast<std::size_t>(c.targets[t]);
    out.losses[t] = plain - z[target];
    Values p(V);
    for (std::size_t k = 0; k < K; ++k) {
      const auto id = static_cast<std::size_t>(c.ids[t * K + k]);
      p[id] = c.probabilities[t * K + k];
      if (p[id] > 0.0) out.divergences[t] += p[id] * (std::log(p[id]) - (z[id] / s - tempered));
    }
    for (std::size_t v = 0; v < V; ++v) {
      const double own = std::exp(z[v] - plain) - (v == target ? 1.0 : 0.0);
      const double taught = std::exp(z[v] / s - tempered) - p[v];
      out.gradients[t * V + v] = c.scale * ((1.0 - w) * own + w * s * taught) * slope[v];
    }
  }
  return out;
}

// The teacher's tokens of each token are spread over the vocabulary; some are the target.
TeacherCase made_up(std::int64_t top, float weight, float temperature) {
  constexpr std::int64_t kTokens = 6, kVocab = 1024;
  TeacherCase c{.vocab_size = kVocab,
                .logits = test::random_values(kTokens * kVocab, 3),
                .targets = {5, 1023, kNoTarget, 0, 511, 77},
                .form = {top, weight, temperature},
                .scale = 0.25f};
  for (double& logit : c.logits) logit *= 4.0;
  for (std::int64_t t = 0; t < kTokens; ++t) {
    const std::int64_t first = std::max(0, c.targets[static_cast<std::size_t>(t)]) + t % 2;
    double sum = 0.0;
    for (std::int64_t k = 0; k < top; ++k) sum += 1.0 / static_cast<double>(k + 1 + t);
    for (std::int64_t k = 0; k < top; ++k) {
      c.ids.push_back(static_cast<std::int32_t>((first + k * 85) % kVocab));
      c.probabilities.push_back(
          test::rounded(DType::kF32, 1.0 / static_cast<double>(k + 1 + t) / sum));
    }
  }
  return c;
}

void expect_near(const Result& found, const Result& exact, DType dtype, const std::string& what) {
  const double share = dtype == DType::kF32 ? 2e-6 : dtype == DType::kF16 ? 1e-3 : 8e-3;
  for (std::size_t i = 0; i < exact.losses.size(); ++i) {
    EXPECT_NEAR(found.losses[i], exact.losses[i], 2e-5) << what << ", loss of " << i;
    EXPECT_NEAR(found.divergences[i], exact.divergences[i], 2e-5) << what << ", token " << i;
  }
  for (std::size_t i = 0; i < exact.gradients.size(); ++i) {
    ASSERT_NEAR(found.gradients[i], exact.gradients[i],
                1e-7 + share * std::abs(exact.gradients[i]) + (dtype == DType::kF32 ? 2e-7 : 0.0))
        << what << ", gradient " << i;
  }
}

TEST(Teacher, AddsItsDivergenceToTheGradient) {
  for (const DType dtype : {DType::kF32, DType::kBF16, DType::kF16}) {
    for (const auto& [top, weight, temperature] :
         {std::tuple(1, 0.5f, 1.0f), {12, 1.0f, 1.0f}, {12, 0.25f, 2.5f}, {7, 0.0f, 0.5f}}) {
      TeacherCase c = made_up(top, weight, temperature);
      c.logits = OwnedTensor(dtype, c.logits).values();
      const std::string what = fmt::format("{}, {} tokens, weight {}, temperature {}",
                                           name_of(dtype), top, weight, temperature);
      expect_near(whole(dtype, c), expected(c), dtype, what);
      expect_near(cut(dtype, c, 1, 1), expected(c), dtype, what + ", cut");
      expect_near(cut(dtype, c, 4, 4), expected(c), dtype, what + ", 4 ranks");
    }
  }
}

TEST(Teacher, SeesScaledAndCappedLogits) {
  TeacherCase c = made_up(9, 0.5f, 2.0f);
  c.shape = {0.5f, 3.0f};
  expect_near(whole(DType::kF32, c), expected(c), DType::kF32, "whole");
  expect_near(cut(DType::kF32, c, 2, 2), expected(c), DType::kF32, "2 ranks");
}

TEST(Teacher, HasTheSameBitsOnAnyNumberOfRanksWithCanonicalSums) {
  const TeacherCase c = made_up(12, 0.5f, 2.0f);
  const Result one = cut(DType::kF32, c, 1, 8);
  for (const int ranks : {2, 4, 8}) {
    const Result found = cut(DType::kF32, c, ranks, 8);
    EXPECT_EQ(found.losses, one.losses) << ranks;
    EXPECT_EQ(found.divergences, one.divergences) << ranks;
    EXPECT_EQ(found.gradients, one.gradients) << ranks;
  }
}

TEST(Teacher, HasNoDivergenceFromTheModelItself) {
  TeacherCase c = made_up(1, 1.0f, 2.0f);
  c.form.top = 512;
  c.vocab_size = 512;
  c.logits.resize(c.targets.size() * 512);
  c.targets[1] = 500;
  c.ids.clear();
  c.probabilities.clear();
  for (std::size_t t = 0; t < c.targets.size(); ++t) {
    double sum = 0.0;
    for (std::size_t v = 0; v < 512; ++v) sum += std::exp(c.logits[t * 512 + v] / 2.0);
    for (std::size_t v = 0; v < 512; ++v) {
      c.ids.push_back(static_cast<std::int32_t>(v));
      c.probabilities.push_back(
          test::rounded(DType::kF32, std::exp(c.logits[t * 512 + v] / 2.0) / sum));
    }
  }
  const Result found = whole(DType::kF32, c);
  for (const double divergence : found.divergences) EXPECT_NEAR(divergence, 0.0, 2e-6);
  for (const double gradient : found.gradients) EXPECT_NEAR(gradient, 0.0, 2e-8);
}

// torchtune, test_kd_losses.py: a cross-entropy, that is, our divergence plus the teacher's entropy.
TEST(Teacher, HasTorchtunesForwardDivergence) {
  const Values students = {1.1250,  -0.4102, -0.0879, -2.5000, 0.2676,  0.3535,  0.8711,  -1.4688,
                           -0.1084, 1.6641,  0.0084,  0.1196,  0.5000,  -0.6406, -0.2236, -1.5938,
                           -1.5312, -1.9219, 0.0000,  -0.5039, -1.5391, 1.5312,  0.5820,  0.2695,
                           -0.3887, 1.2188,  0.0000,  0.6055,  0.5000,  1.3828,  0.1309,  -1.0312};
  const Values teachers = {-0.0381, -1.2578, -1.2031, 0.0947,  -0.7852, 0.4492, 1.5547,  0.0972,
                           0.8203,  0.0012,  0.7656,  0.3477,  -1.5781, 0.4297, 0.5977,  0.3926,
                           1.5156,  0.1641,  2.0781,  -0.7734, -0.5898, 0.4453, -0.7969, 0.6328,
                           0.6289,  -0.8359, 0.9258,  0.2109,  0.0006,  0.5195, 3.2344,  -1.5781};
  TeacherCase c{.vocab_size = 4,
                .logits = students,
                .targets = {0, 3, 3, 1, 1, 1, 1, 1},
                .form = {4, 1.0f, 1.0f}};
  double entropies = 0.0;
  for (std::size_t t = 0; t < 8; ++t) {
    double sum = 0.0;
    for (std::size_t v = 0; v < 4; ++v) sum += std::exp(teachers[t * 4 + v]);
    for (std::size_t v = 0; v < 4; ++v) {
      const double p = std::exp(teachers[t * 4 + v]) / sum;
      c.ids.push_back(static_cast<std::int32_t>(v));
      c.probabilities.push_back(p);
      entropies -= p * std::log(p);
    }
  }
  const Result found = whole(DType::kF32, c);
  const double divergences =
      std::accumulate(found.divergences.begin(), found.divergences.end(), 0.0);
  EXPECT_NEAR((divergences + entropies) / 8.0, 1.7209, 1e-3);
}

}  // namespace
}  // namespace sherd::kernels
