/// Experts forward and backward in one place, for tests of GPUs.
#pragma once

#include <algorithm>
#include <limits>

#include "kernels/experts.h"
#include "tests/kernels/expert_routes.h"
#include "tests/support/devices/place.h"

// T tokens of width D, E experts of width F, k of them for each token.
namespace sherd::kernels {

struct ExpertCase {
  ExpertsShape shape;
  DType dtype = DType::kF32;
  std::vector<std::int32_t> chosen{};
  DType gradients = DType::kF32;
  bool adds = false, biases = false;
};

enum ExpertOutput { kY, kDWeights, kDX, kDUp, kDDown, kRows, kDUpBias, kDDownBias };

/// Buffers of rounds hold what nobody may read.
inline test::OwnedTensor nans(DType dtype, std::int64_t numel) {
  return {dtype,
          test::Values(static_cast<std::size_t>(numel), std::numeric_limits<double>::quiet_NaN())};
}

inline test::Outputs both_ways(test::Place& place, const ExpertCase& c) {
  const ExpertsShape& shape = c.shape;
  const std::int64_t T = shape.tokens, D = shape.width, F = shape.ffn_width, C = shape.buffer_rows;
  const std::int64_t U = shape.up_width(), E = shape.experts, k = shape.per_token;
  const test::OwnedTensor x(c.dtype, test::random_values(T * D, 1)),
      dy(c.dtype, test::random_values(T * D, 2));
  const test::OwnedTensor shared(c.dtype, test::random_values(T * D, 3)), chosen(c.chosen);
  const test::OwnedTensor up(c.dtype, test::random_values(E * U * D, 4, 0.4));
  const test::OwnedTensor down(c.dtype, test::random_values(E * D * F, 5, 0.4));
  const test::OwnedTensor weights(DType::kF32, test::random_values(T * k, 6));
  const test::OwnedTensor up_bias(c.dtype, test::random_values(E * U, 9)),
      down_bias(c.dtype, test::random_values(E * D, 10));
  test::OwnedTensor sums(DType::kF32, T * D), d_sum(DType::kF32, T * D),
      rows = nans(c.dtype, C * D), up_rows = nans(c.dtype, C * U), activated = nans(c.dtype, C * F),
      d_activated = nans(c.dtype, C * F), order(DType::kI32, experts_order_numel(shape));
  const ExpertsWorkspace buffers{
      place.out(sums),
      place.out(rows),
      place.out(up_rows),
      place.out(activated),
      place.out(d_activated),
      place.out(order),
      place.scratch(experts_workspace_bytes(shape, c.dtype, c.gradients, place.device()))};
  test::Outputs out{{c.dtype, T * D},
                    {DType::kF32, T * k},
                    {c.dtype, T * D},
                    {c.gradients, test::random_values(E * U * D, 7)},
                    {c.gradients, test::random_values(E * D * F, 8)},
                    {DType::kI32, E},
                    {c.gradients, test::random_values(E * U, 11)},
                    {c.gradients, test::random_values(E * D, 12)}};
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

}  // namespace sherd::kernels
