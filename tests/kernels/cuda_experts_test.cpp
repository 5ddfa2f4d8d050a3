// Experts on a GPU, compared with the CPU's.
#include <gtest/gtest.h>

#include <cmath>

#include "tests/kernels/expert_case.h"

namespace sherd::kernels {
namespace {

using test::Outputs;
using test::Place;
using test::Values;

std::vector<ExpertCase> cases(DType dtype) {
  std::vector<ExpertCase> all;
  for (const Routed& each : routed_shapes()) {
    all.push_back({.shape = each.shape,
                   .dtype = dtype,
                   .chosen = each.chosen,
                   .gradients = each.number % 4 == 0 ? dtype : DType::kF32,
                   .adds = each.number % 5 == 0,
                   .biases = each.number % 2 == 0});
    all.back().shape.weighs_input = each.number % 4 == 1;
    if (!all.back().biases) all.back().shape.grouped = true;
  }
  return all;
}

class CudaExperts : public test::OnGpuInEveryType {};
INSTANTIATE_TEST_SUITE_P(Types, CudaExperts, test::compute_types(), test::type_name);

TEST_P(CudaExperts, FollowTheCpuInBothDirectionsHoweverTokensChoose) {
  for (const ExpertCase& c : cases(GetParam())) {
    SCOPED_TRACE(fmt::format("{} tokens, {} of {} experts", c.shape.tokens, c.shape.per_token,
                             c.shape.experts));
    const test::Work work = [&](Place& place) { return both_ways(place, c); };
    const Outputs gpu = test::on_gpu(work), cpu = test::on_cpu(work);
    // What lies between the products is rounded to 16 bits, up to four times on the way to an output.
    test::Tolerance tolerance = test::rounded_once(GetParam()).times(4.0);
    if (GetParam() != DType::kF32) {
      tolerance.floor += 12.0 * test::rounded_once(GetParam()).relative;
    }
    for (const ExpertOutput output : {kY, kDWeights, kDX, kDUp, kDDown, kDUpBias, kDDownBias}) {
      EXPECT_TRUE(test::close(gpu[output], cpu[output].values(), tolerance)) << "output " << output;
    }
    Values rows(static_cast<std::size_t>(c.shape.experts));
    for (const std::int32_t e : c.chosen) {
      if (e >= 0) rows[static_cast<std::size_t>(e)] += 1.0;
    }
    EXPECT_EQ(gpu[kRows].values(), rows);
  }
}

TEST_P(CudaExperts, HaveTheSameBitsWhateverTheBufferHasRoomFor) {
  for (const bool grouped : {false, true}) {
    ExpertsShape shape{.tokens = 1300, .width = 16, .experts = 3, .ffn_width = 8, .per_token = 2};
    shape.grouped = grouped;
    ExpertCase c{.shape = shape,
                 .dtype = GetParam(),
                 .chosen = routes(shape, Routes::kRandom, 3),
                 .biases = !grouped};
    c.shape.buffer_rows = 2600;
    const Outputs whole = test::on_gpu([&](Place& place) { return both_ways(place, c); });
    for (const std::int64_t rows : {512, 1100}) {
      c.shape.buffer_rows = rows;
      EXPECT_TRUE(
          test::same_bits(test::on_gpu([&](Place& place) { return both_ways(place, c); }), whole))
          << rows << " rows, grouped " << grouped;
    }
  }
}

// Of an expert's rows there are many, and then the first token's alone.
TEST_P(CudaExperts, GiveATokenTheSameBitsWhateverOthersChoose) {
  for (const auto& [width, grouped] :
       {std::pair(24, false), {128, false}, {24, true}, {128, true}}) {
    ExpertsShape shape{
        .tokens = 300, .width = width, .experts = 5, .ffn_width = 2 * width, .per_token = 2};
    shape.buffer_rows = experts_buffer_rows(shape);
    shape.grouped = grouped;
    ExpertCase c{.shape = shape, .dtype = GetParam(), .biases = !grouped};
    const auto first_tokens = [&](const std::vector<std::int32_t>& of_others) {
      c.chosen = {1, 3};
      for (std::int64_t t = 1; t < shape.tokens; ++t) {
        c.chosen.insert(c.chosen.end(), of_others.begin(), of_others.end());
      }
      return test::on_gpu([&](Place& place) { return both_ways(place, c); });
    };
    const Outputs among_many = first_tokens({1, 3}), among_some = first_tokens({1, 2});
    const Outputs alone = first_tokens({0, 4});
    for (const ExpertOutput output : {kY, kDX}) {
      const ConstTensor own = alone[output].tensor().part(0, width);
      EXPECT_TRUE(test::same_bits(among_many[output].tensor().part(0, width), own)) << width;
      EXPECT_TRUE(test::same_bits(among_some[output].tensor().part(0, width), own)) << width;
    }
    // Nobody chose expert 0 at first, and only others did at last.
    const Values unused = among_many[kDUp].values();
    for (std::int64_t i = 0; i < shape.up_width() * width; ++i) {
      ASSERT_EQ(unused[static_cast<std::size_t>(i)], 0.0);
      ASSERT_FALSE(std::signbit(unused[static_cast<std::size_t>(i)]));
    }
  }
}

// Experts without rows are the first, others, and the last; rounds end within a buffer.
TEST_P(CudaExperts, GroupedFollowTheCpuInRoundsOfAnySize) {
  for (const Routes kind : {Routes::kRandom, Routes::kFirstExperts, Routes::kLastExperts}) {
    for (const std::int64_t tokens : {1, 90, 700}) {
      ExpertsShape shape{
          .tokens = tokens, .width = 24, .experts = 7, .ffn_width = 16, .per_token = 2};
      shape.buffer_rows = 700;
      shape.buffer_rows = experts_buffer_rows(shape);
      shape.grouped = true;
      const ExpertCase c{.shape = shape, .dtype = GetParam(), .chosen = routes(shape, kind, 5)};
      const test::Work work = [&](Place& place) { return both_ways(place, c); };
      const Outputs gpu = test::on_gpu(work), cpu = test::on_cpu(work);
      test::Tolerance tolerance = test::rounded_once(GetParam()).times(4.0);
      if (GetParam() != DType::kF32) {
        tolerance.floor += 12.0 * test::rounded_once(GetParam()).relative;
      }
      for (const ExpertOutput output : {kY, kDWeights, kDX, kDUp, kDDown}) {
        EXPECT_TRUE(test::close(gpu[output], cpu[output].values(), tolerance)) << tokens;
      }
    }
  }
}

}  // namespace
}  // namespace sherd::kernels
