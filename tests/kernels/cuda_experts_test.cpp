// Experts on a GPU, compared with the CPU's.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "kernels/experts.h"
#include "tests/kernels/expert_routes.h"
#include "tests/support/devices/place.h"

// T tokens of width D, E experts of width F, k of them for each token.
namespace sherd::kernels {
namespace {

using test::Outputs;
using test::OwnedTensor;
using test::Place;
using test::random_values;
using test::Values;

struct Case {
  ExpertsShape shape;
  DType dtype = DType::kF32;
  std::vector<std::int32_t> chosen{};
  DType gradients = DType::kF32;
  bool adds = false, biases = false;
};

enum Output { kY, kDWeights, kDX, kDUp, kDDown, kRows, kDUpBias, kDDownBias };

Outputs both_ways(Place& place, const Case& c) {
  const ExpertsShape& shape = c.shape;
  const std::int64_t T = shape.tokens, D = shape.width, F = shape.ffn_width, C = shape.buffer_rows;
  const std::int64_t U = shape.up_width(), E = shape.experts, k = shape.per_token;
  const OwnedTensor x(c.dtype, random_values(T * D, 1)), dy(c.dtype, random_values(T * D, 2));
  const OwnedTensor shared(c.dtype, random_values(T * D, 3)), chosen(c.chosen);
  const OwnedTensor up(c.dtype, random_values(E * U * D, 4, 0.4));
  const OwnedTensor down(c.dtype, random_values(E * D * F, 5, 0.4));
  const OwnedTensor weights(DType::kF32, random_values(T * k, 6));
  const OwnedTensor up_bias(c.dtype, random_values(E * U, 9)),
      down_bias(c.dtype, random_values(E * D, 10));
  OwnedTensor sums(DType::kF32, T * D), d_sum(DType::kF32, T * D), rows(c.dtype, C * D),
      up_rows(c.dtype, C * U), activated(c.dtype, C * F), d_activated(c.dtype, C * F),
      order(DType::kI32, experts_order_numel(shape));
  const ExpertsWorkspace buffers{
      place.out(sums),
      place.out(rows),
      place.out(up_rows),
      place.out(activated),
      place.out(d_activated),
      place.out(order),
      place.scratch(experts_workspace_bytes(shape, c.dtype, c.gradients, place.device()))};
  Outputs out{{c.dtype, T * D},
              {DType::kF32, T * k},
              {c.dtype, T * D},
              {c.gradients, random_values(E * U * D, 7)},
              {c.gradients, random_values(E * D * F, 8)},
              {DType::kI32, E},
              {c.gradients, random_values(E * U, 11)},
              {c.gradients, random_values(E * D, 12)}};
  ExpertBiases biases;
  ExpertBiasGradients d_biases;
  if (c.biases) {
    biases = {place.in(up_bias), place.in(down_bias)};
    d_biases = {place.out(out[kDUpBias]), place.out(out[kDDownBias])};
  }
  Stream& stream = place.stream();
  const ConstTensor x_in = place.in(x), up_in = place.in(up), down_in = place.in(down);
  const ConstTensor chosen_in = place.in(chosen), weights_in = place.in(weights);
  const ConstTensor shared_in = place.in(shared);
  std::vector<std::int32_t> counts(static_cast<std::size_t>(E), 0);
  expert_row_counts(stream, {shape, chosen_in, buffers.order, counts});
  experts_forward(stream, {.shape = shape,
                           .x = x_in,
                           .up = up_in,
                           .down = down_in,
                           .chosen = chosen_in,
                           .weights = weights_in,
                           .biases = biases,
                           .shared = shared_in,
                           .y = place.out(out[kY]),
                           .workspace = buffers,
                           .rows = counts});
  const Tensor sum = place.out(d_sum);
  experts_backward(stream, {.shape = shape,
                            .x = x_in,
                            .dy = place.in(dy),
                            .up = up_in,
                            .down = down_in,
                            .chosen = chosen_in,
                            .weights = weights_in,
                            .d_weights = place.out(out[kDWeights]),
                            .d_sum = sum,
                            .d_up = place.out(out[kDUp]),
                            .d_down = place.out(out[kDDown]),
                            .adds_up = c.adds,
                            .adds_down = c.adds,
                            .workspace = buffers,
                            .biases = biases,
                            .d_biases = d_biases,
                            .rows = counts});
  experts_input_gradient(stream, {sum, {}, shared_in, place.out(out[kDX])});
  place.finish();
  std::ranges::copy(counts, out[kRows].tensor().as<std::int32_t>());
  return out;
}

std::vector<Case> cases(DType dtype) {
  std::vector<Case> all;
  for (const Routed& each : routed_shapes()) {
    all.push_back({.shape = each.shape,
                   .dtype = dtype,
                   .chosen = each.chosen,
                   .gradients = each.number % 4 == 0 ? dtype : DType::kF32,
                   .adds = each.number % 5 == 0,
                   .biases = each.number % 2 == 0});
    all.back().shape.weighs_input = each.number % 4 == 1;
  }
  return all;
}

class CudaExperts : public test::OnGpuInEveryType {};
INSTANTIATE_TEST_SUITE_P(Types, CudaExperts, test::compute_types(), test::type_name);

TEST_P(CudaExperts, FollowTheCpuInBothDirectionsHoweverTokensChoose) {
  for (const Case& c : cases(GetParam())) {
    SCOPED_TRACE(fmt::format("{} tokens, {} of {} experts", c.shape.tokens, c.shape.per_token,
                             c.shape.experts));
    const test::Work work = [&](Place& place) { return both_ways(place, c); };
    const Outputs gpu = test::on_gpu(work), cpu = test::on_cpu(work);
    // What lies between the products is rounded to 16 bits, up to four times on the way to an output.
    test::Tolerance tolerance = test::rounded_once(GetParam()).times(4.0);
    if (GetParam() != DType::kF32) {
      tolerance.floor += 12.0 * test::rounded_once(GetParam()).relative;
    }
    for (const Output output : {kY, kDWeights, kDX, kDUp, kDDown, kDUpBias, kDDownBias}) {
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
  ExpertsShape shape{.tokens = 1300, .width = 16, .experts = 3, .ffn_width = 8, .per_token = 2};
  Case c{.shape = shape,
         .dtype = GetParam(),
         .chosen = routes(shape, Routes::kRandom, 3),
         .biases = true};
  c.shape.buffer_rows = 2600;
  const Outputs whole = test::on_gpu([&](Place& place) { return both_ways(place, c); });
  for (const std::int64_t rows : {512, 1100}) {
    c.shape.buffer_rows = rows;
    EXPECT_TRUE(
        test::same_bits(test::on_gpu([&](Place& place) { return both_ways(place, c); }), whole))
        << rows << " rows";
  }
}

// Of an expert's rows there are many, and then the first token's alone.
TEST_P(CudaExperts, GiveATokenTheSameBitsWhateverOthersChoose) {
  for (const std::int64_t width : {24, 128}) {
    ExpertsShape shape{
        .tokens = 300, .width = width, .experts = 5, .ffn_width = 2 * width, .per_token = 2};
    shape.buffer_rows = experts_buffer_rows(shape);
    Case c{.shape = shape, .dtype = GetParam(), .biases = true};
    const auto first_tokens = [&](const std::vector<std::int32_t>& of_others) {
      c.chosen = {1, 3};
      for (std::int64_t t = 1; t < shape.tokens; ++t) {
        c.chosen.insert(c.chosen.end(), of_others.begin(), of_others.end());
      }
      return test::on_gpu([&](Place& place) { return both_ways(place, c); });
    };
    const Outputs among_many = first_tokens({1, 3}), among_some = first_tokens({1, 2});
    const Outputs alone = first_tokens({0, 4});
    for (const Output output : {kY, kDX}) {
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

}  // namespace
}  // namespace sherd::kernels
