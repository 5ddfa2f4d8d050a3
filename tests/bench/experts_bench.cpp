// Experts against dense layers of the same products, turn by turn: a block with the ratios of Qwen3-MoE (32 experts, 4
// for each token, F = 3/8 D). Dense are the same matmuls over all rows at once, with one matrix, and the activation.
// The backward of experts forms the up projection again; so does the dense one here.
//
//   ./dev build cpu sherd_experts_bench && build/cpu/tests/sherd_experts_bench [threads]

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <vector>

#include "kernels/activation.h"
#include "kernels/experts.h"
#include "kernels/isa.h"
#include "kernels/linear.h"
#include "tests/support/values/tensors.h"

namespace sherd {
namespace {

using kernels::activation_backward, kernels::activation_forward, kernels::ExpertsShape;
using kernels::linear_backward_input, kernels::linear_backward_weight, kernels::linear_forward;
using test::OwnedTensor;

double seconds_of(Stream& stream, const auto& work) {
  const auto begin = std::chrono::steady_clock::now();
  work();
  stream.synchronize();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

double median(std::vector<double> values) {
  std::ranges::sort(values);
  return values[values.size() / 2];
}

// Each token's experts: as even as random numbers are, or with a few experts taken several times as often.
std::vector<std::int32_t> routes(const ExpertsShape& shape, int imbalance) {
  std::vector<std::int32_t> chosen;
  const auto random = test::random_tokens(shape.tokens * 64, 1 << 30, 3);
  for (std::int64_t t = 0; t < shape.tokens; ++t) {
    std::vector<std::int32_t> own;
    for (std::int64_t i = t * 64; std::ssize(own) < shape.per_token; ++i) {
      const std::int32_t number = random[static_cast<std::size_t>(i)];
      const auto experts = static_cast<std::int32_t>(shape.experts);
      std::int32_t expert = number / 64 % experts;
      if (imbalance > 1 && number % imbalance != 0) expert %= experts / imbalance;
      if (std::ranges::count(own, expert) == 0) own.push_back(expert);
    }
    std::ranges::sort(own);
    chosen.insert(chosen.end(), own.begin(), own.end());
  }
  return chosen;
}

struct Ratios {
  std::vector<double> forward, backward, rate;  ///< of each round
};

void print(DType dtype, int threads, int imbalance, const Ratios& ratios) {
  fmt::print(
      "{} {}, {} threads, max/mean about {}: forward {:.2f} of dense ({:.0f} GFLOP/s), backward "
      "{:.2f}\n",
      kernels::name_of(kernels::isa()), name_of(dtype), threads, imbalance, median(ratios.forward),
      median(ratios.rate), median(ratios.backward));
}

void compare(DType dtype, int threads, int imbalance) {
  ExpertsShape shape{.tokens = 2048, .width = 512, .experts = 32, .ffn_width = 192, .per_token = 4};
  shape.buffer_rows = shape.tokens * shape.per_token;
  const std::int64_t T = shape.tokens, D = shape.width, F = shape.ffn_width, U = shape.up_width(),
                     N = shape.buffer_rows, E = shape.experts;
  const auto stream = test::compute_stream(threads);
  const auto filled = [&](std::int64_t numel, double scale) {
    return OwnedTensor(dtype, test::random_values(numel, 1, scale));
  };
  OwnedTensor x = filled(T * D, 1.0), dy = filled(T * D, 1.0), y = filled(T * D, 1.0),
              up = filled(E * U * D, 0.05), down = filled(E * D * F, 0.05),
              rows = filled(N * D, 1.0), wide = filled(N * U, 1.0), narrow = filled(N * F, 1.0),
              d_narrow = filled(N * F, 1.0);
  OwnedTensor sums(DType::kF32, T * D), d_up(DType::kF32, E * U * D),
      d_down(DType::kF32, E * D * F), d_weights(DType::kF32, N),
      order(DType::kI32, experts_order_numel(shape)),
      matmuls(DType::kU8, kernels::experts_workspace_bytes(shape, dtype, DType::kF32, {}));
  const OwnedTensor chosen(routes(shape, imbalance)),
      weights(DType::kF32, test::Values(static_cast<std::size_t>(N), 0.25));
  const kernels::ExpertsWorkspace buffers{sums, rows, wide, narrow, d_narrow, order, matmuls};
  const kernels::LinearShape into{N, D, U}, out_of{N, F, D};
  const kernels::ComputeDevice device{DeviceKind::kCpu, threads};
  OwnedTensor linear(DType::kU8,
                     std::max(linear_workspace_bytes(into, dtype, DType::kF32, device),
                              linear_workspace_bytes(out_of, dtype, DType::kF32, device)));
  const kernels::ActivationShape activation{shape.activation, N, F};
  const Tensor up0 = up.tensor().part(0, U * D), down0 = down.tensor().part(0, D * F);
  const Tensor d_up0 = d_up.tensor().part(0, U * D), d_down0 = d_down.tensor().part(0, D * F);
  const auto dense_activation = [&] {
    linear_forward(*stream, {into, rows, up0, {}, wide, linear});
    activation_forward(*stream, {activation, wide, narrow});
  };
  const auto dense_forward = [&] {
    dense_activation();
    linear_forward(*stream, {out_of, narrow, down0, {}, rows, linear});
  };
  const auto dense_backward = [&] {
    dense_activation();
    linear_backward_input(*stream, {out_of, rows, down0, d_narrow, false, linear});
    linear_backward_weight(*stream, {out_of, rows, narrow, d_down0, {}, false, linear});
    activation_backward(*stream, {activation, wide, d_narrow, wide});
    linear_backward_weight(*stream, {into, wide, rows, d_up0, {}, false, linear});
    linear_backward_input(*stream, {into, wide, up0, rows, false, linear});
  };
  const auto experts_forward = [&] {
    kernels::experts_forward(*stream, {.shape = shape,
                                       .x = x,
                                       .up = up,
                                       .down = down,
                                       .chosen = chosen,
                                       .weights = weights,
                                       .y = y,
                                       .workspace = buffers});
  };
  const auto experts_backward = [&] {
    kernels::experts_backward(*stream, {.shape = shape,
                                        .x = x,
                                        .dy = dy,
                                        .up = up,
                                        .down = down,
                                        .chosen = chosen,
                                        .weights = weights,
                                        .d_weights = d_weights,
                                        .d_sum = sums,
                                        .d_up = d_up,
                                        .d_down = d_down,
                                        .workspace = buffers});
  };
  Ratios ratios;
  const double flops = 2.0 * static_cast<double>(N * (U + F) * D);
  for (int round = 0; round < 11; ++round) {
    const double dense = seconds_of(*stream, dense_forward);
    const double own = seconds_of(*stream, experts_forward);
    ratios.forward.push_back(dense / own);
    ratios.rate.push_back(flops / own * 1e-9);
    const double dense_back = seconds_of(*stream, dense_backward);
    ratios.backward.push_back(dense_back / seconds_of(*stream, experts_backward));
  }
  print(dtype, threads, imbalance, ratios);
}

}  // namespace
}  // namespace sherd

int main(int argc, char** argv) {
  const int threads = argc > 1 ? std::atoi(argv[1]) : 1;
  for (const auto dtype : {sherd::DType::kF32, sherd::DType::kBF16}) {
    for (const int imbalance : {1, 4}) sherd::compare(dtype, threads, imbalance);
  }
}
