// A teacher's divergence and gradient on a GPU are the CPU's, whole and with the vocabulary divided.
#include <gtest/gtest.h>

#include "kernels/cut_cross_entropy.h"
#include "kernels/pointwise.h"
#include "tests/support/devices/place.h"

// T tokens, V vocabulary, K of the teacher's tokens.
namespace sherd::kernels {
namespace {

using test::Outputs;
using test::OwnedTensor;
using test::Place;
using test::Values;

class CudaTeacher : public test::OnGpuInEveryType {};
INSTANTIATE_TEST_SUITE_P(Types, CudaTeacher, test::compute_types(), test::type_name);

struct Case {
  std::int64_t tokens, vocab_size, top;
  float weight, temperature;
  LogitsForm form{};

  TeacherForm teacher() const { return {top, weight, temperature}; }
  // The second token has no target; the third one's is among its teacher's.
  std::vector<std::int32_t> targets() const {
    std::vector<std::int32_t> ids = test::random_tokens(tokens, vocab_size, 1);
    ids[1] = kNoTarget;
    ids[2] = this->ids()[static_cast<std::size_t>(2 * top)];
    return ids;
  }
  std::vector<std::int32_t> ids() const {
    std::vector<std::int32_t> ids;
    for (std::int64_t i = 0; i < tokens * top; ++i) {
      ids.push_back(static_cast<std::int32_t>((i / top * 31 + i % top * 3) % vocab_size));
    }
    return ids;
  }
  Values probabilities() const {
    Values values;
    for (std::int64_t i = 0; i < tokens * top; ++i) {
      values.push_back(2.0 * static_cast<double>(top - i % top) /
                       static_cast<double>(top * (top + 1)));
    }
    return values;
  }
};

const Case kCases[] = {
    {3, 7, 2, 0.5f, 1.0f}, {5, 512, 12, 1.0f, 2.0f}, {4, 1003, 300, 0.25f, 0.5f, {0.5f, 3.0f}}};

void expect_alike(DType type, const Outputs& gpu, const Outputs& cpu) {
  for (std::size_t i = 0; i < gpu.size(); i += 3) {
    EXPECT_TRUE(test::close(gpu[i + 1], cpu[i + 1].values(), {1e-5, 1e-5, 1e-5}));
    EXPECT_TRUE(test::close(gpu[i + 2], cpu[i + 2].values(), {2e-5, 2e-5, 2e-5}));
    EXPECT_EQ(gpu[i + 2].values()[1], 0.0) << "a row without a target";
    test::Tolerance tolerance = test::rounded_once(type).times(2);
    tolerance.absolute += 1e-6;
    EXPECT_TRUE(test::close(gpu[i], cpu[i].values(), tolerance));
  }
}

TEST_P(CudaTeacher, GradientsAreTheCpus) {
  const DType type = GetParam();
  for (const Case& c : kCases) {
    SCOPED_TRACE(fmt::format("V {} K {}", c.vocab_size, c.top));
    const OwnedTensor logits(type, test::random_values(c.tokens * c.vocab_size, 2, 8.0));
    const OwnedTensor targets(c.targets()), ids(c.ids());
    const OwnedTensor probabilities(DType::kF32, c.probabilities());
    const test::Work work = [&](Place& place) {
      Outputs out{logits, {DType::kF32, c.tokens}, {DType::kF32, c.tokens}};
      cross_entropy(place.stream(), {.tokens = c.tokens,
                                     .vocab_size = c.vocab_size,
                                     .logits = place.out(out[0]),
                                     .targets = place.in(targets),
                                     .losses = place.out(out[1]),
                                     .grad_scale = 0.125f,
                                     .form = c.form,
                                     .teacher = {c.teacher(), place.in(ids),
                                                 place.in(probabilities), place.out(out[2])}});
      place.finish();
      return out;
    };
    expect_alike(type, test::on_gpu(work), test::on_cpu(work));
  }
}

TEST_P(CudaTeacher, GradientsAreTheCpusWhereRanksDivideTheVocabulary) {
  const DType type = GetParam();
  for (const Case& c : kCases) {
    SCOPED_TRACE(fmt::format("V {} K {}", c.vocab_size, c.top));
    const Values logits =
        OwnedTensor(type, test::random_values(c.tokens * c.vocab_size, 2, 8.0)).values();
    const OwnedTensor targets(c.targets()), ids(c.ids());
    const OwnedTensor probabilities(DType::kF32, c.probabilities());
    const std::int64_t half = c.vocab_size / 2;
    const test::Work work = [&](Place& place) {
      Outputs out;
      OwnedTensor maxima(DType::kF32, 2 * c.tokens), part(DType::kF32, 4 * c.tokens);
      OwnedTensor zeros(DType::kF32, Values(static_cast<std::size_t>(4 * c.tokens), 0.0));
      for (const auto& [first, rows] :
           {std::pair{std::int64_t{0}, half}, {half, c.vocab_size - half}}) {
        Values own;
        for (std::int64_t t = 0; t < c.tokens; ++t) {
          const auto row = logits.begin() + t * c.vocab_size + first;
          own.insert(own.end(), row, row + rows);
        }
        out.emplace_back(type, own);
        out.emplace_back(DType::kF32, c.tokens);
        out.emplace_back(DType::kF32, c.tokens);
      }
      const Tensor sums = place.out(zeros);
      CutCrossEntropy all;
      all.tokens = c.tokens;
      all.num_ranks = 2;
      all.targets = place.in(targets);
      all.maxima = place.out(maxima);
      all.sums = place.out(part);
      all.grad_scale = 0.125f;
      all.form = c.form;
      std::vector<CutCrossEntropy> ranks(2, all);
      for (int r = 0; r < 2; ++r) {
        CutCrossEntropy& rank = ranks[static_cast<std::size_t>(r)];
        const auto at = static_cast<std::size_t>(3 * r);
        rank.rank = r;
        rank.num_rows = r == 0 ? half : c.vocab_size - half;
        rank.rows = {r * half, c.vocab_size};
        rank.logits = place.out(out[at]);
        rank.losses = place.out(out[at + 1]);
        rank.teacher = {c.teacher(), place.in(ids), place.in(probabilities),
                        place.out(out[at + 2])};
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
    };
    expect_alike(type, test::on_gpu(work), test::on_cpu(work));
  }
}

}  // namespace
}  // namespace sherd::kernels
