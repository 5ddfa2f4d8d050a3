#include "kernels/pointwise.h"

#include <algorithm>
#include <bit>
#include <span>

#include "core/error.h"
#include "core/exact_sum.h"
#include "kernels/cpu/pointwise.h"
#include "kernels/device.h"
#include "kernels/launches/on_gpu.h"

namespace sherd::kernels {
namespace {

constexpr std::int64_t kSumBlock = 4096;

void check_alike(ConstTensor a, ConstTensor b) {
  SHERD_CHECK(a.numel == b.numel && a.dtype == b.dtype, "{} elements of {} and {} of {}", a.numel,
              name_of(a.dtype), b.numel, name_of(b.dtype));
}

void check_exact_sum(ConstTensor out) {
  SHERD_CHECK(out.dtype == DType::kF64 && out.numel == ExactSum::kNumbers,
              "an exact sum in {} of {}", out.numel, name_of(out.dtype));
}

// What a GPU has added in f64.
Tensor f64_addend(Tensor exact_sum) {
  return exact_sum.part(ExactSum::kNumbers - 1, 1);
}

}  // namespace

void fill_zero(Stream& stream, Tensor x) {
  if (is_cuda(stream)) return on_gpu(stream, cuda::fill_zero, launches::fill_zero, x);
  stream.run("fill_zero", [=, &stream] { cpu::fill_zero(stream.team(), x); });
}

void fill_constant(Stream& stream, Tensor out, float value) {
  if (is_cuda(stream))
    return on_gpu(stream, cuda::fill_constant, launches::fill_constant, out, value);
  stream.run("fill_constant", [=, &stream] { cpu::fill_constant(stream.team(), out, value); });
}

void cast(Stream& stream, ConstTensor x, Tensor y) {
  SHERD_CHECK(x.numel == y.numel, "cast of {} elements into {}", x.numel, y.numel);
  SHERD_CHECK(x.data != y.data || size_of(x.dtype) == size_of(y.dtype), "cast of {} to {} in place",
              name_of(x.dtype), name_of(y.dtype));
  if (is_cuda(stream)) return on_gpu(stream, cuda::cast, launches::cast, x, y);
  stream.run("cast", [=, &stream] { cpu::cast(stream.team(), x, y); });
}

void add(Stream& stream, ConstTensor x, Tensor accumulator) {
  SHERD_CHECK(x.numel == accumulator.numel, "{} elements added to {}", x.numel, accumulator.numel);
  if (is_cuda(stream)) return on_gpu(stream, cuda::add, launches::add, x, accumulator);
  stream.run("add", [=, &stream] { cpu::add(stream.team(), x, accumulator); });
}

void move_towards(Stream& stream, ConstTensor x, float weight, Tensor average) {
  check_alike(x, average);
  SHERD_CHECK(x.dtype == DType::kF32, "an average of {}", name_of(x.dtype));
  if (weight == 1.0f) return cast(stream, x, average);
  if (is_cuda(stream)) {
    return on_gpu(stream, cuda::move_towards, launches::move_towards, x, weight, average);
  }
  stream.run("move_towards",
             [=, &stream] { cpu::move_towards(stream.team(), x, weight, average); });
}

void exchange(Stream& stream, Tensor a, Tensor b) {
  check_alike(a, b);
  SHERD_CHECK(a.dtype == DType::kF32, "an exchange of {}", name_of(a.dtype));
  if (is_cuda(stream)) return on_gpu(stream, cuda::exchange, launches::exchange, a, b);
  stream.run("exchange", [=, &stream] { cpu::exchange(stream.team(), a, b); });
}

void sum_in_order_on_host(const ConstTensor* inputs, int num_inputs, Tensor out, bool onto_out) {
  SHERD_CHECK(num_inputs >= 1, "a sum of {} buffers", num_inputs);
  for (int k = 0; k < num_inputs; ++k) check_alike(inputs[k], inputs[0]);
  SHERD_CHECK(inputs[0].numel == out.numel, "{} elements added into {}", inputs[0].numel,
              out.numel);
  cpu::sum_in_order(inputs, num_inputs, out, onto_out);
}

void sum_as_trees_on_host(const ConstTensor* inputs, int num_inputs, int tree, Tensor out,
                          bool onto_out) {
  SHERD_CHECK(num_inputs >= 1 && tree >= 1 && std::has_single_bit(static_cast<unsigned>(tree)) &&
                  num_inputs % tree == 0,
              "{} buffers in balanced trees of {}", num_inputs, tree);
  for (int k = 0; k < num_inputs; ++k) check_alike(inputs[k], inputs[0]);
  SHERD_CHECK(inputs[0].numel == out.numel, "{} elements added into {}", inputs[0].numel,
              out.numel);
  cpu::sum_as_trees(inputs, num_inputs, tree, out, onto_out);
}

void residual_add(Stream& stream, ConstTensor residual, ConstTensor branch, const Dropout& dropout,
                  Tensor out, float scale) {
  check_alike(residual, out);
  check_alike(branch, out);
  if (is_cuda(stream))
    return on_gpu(stream, cuda::residual_add, launches::residual_add, residual, branch, dropout,
                  scale, out);
  stream.run("residual_add", [=, &stream] {
    cpu::residual_add(stream.team(), residual, branch, dropout, scale, out);
  });
}

void dropout_backward(Stream& stream, ConstTensor dy, const Dropout& dropout, Tensor dx,
                      float scale) {
  check_alike(dy, dx);
  if (is_cuda(stream))
    return on_gpu(stream, cuda::dropout_backward, launches::dropout_backward, dy, dropout, scale,
                  dx);
  stream.run("dropout_backward",
             [=, &stream] { cpu::dropout_backward(stream.team(), dy, dropout, scale, dx); });
}

void sum_of_squares(Stream& stream, ConstTensor x, Tensor out, Tensor workspace) {
  check_exact_sum(out);
  SHERD_CHECK(workspace.dtype == DType::kF64 &&
                  workspace.bytes() >= sum_of_squares_workspace_bytes(x.numel),
              "workspace is {} of {}", workspace.numel, name_of(workspace.dtype));
  if (is_cuda(stream)) {
    on_gpu(stream, cuda::fill_zero, launches::fill_zero, out);
    return on_gpu(stream, cuda::sum_of_squares, launches::sum_of_squares, x, f64_addend(out),
                  workspace);
  }
  stream.run("sum_of_squares", [=, &stream] { cpu::sum_of_squares(stream.team(), x, out); });
}

std::int64_t sum_of_squares_workspace_bytes(std::int64_t numel) {
  return (numel + kSumBlock - 1) / kSumBlock * static_cast<std::int64_t>(sizeof(double));
}

void sum(Stream& stream, ConstTensor x, Tensor out, bool add) {
  check_exact_sum(out);
  SHERD_CHECK(x.dtype == DType::kF32, "a sum of {}", name_of(x.dtype));
  if (is_cuda(stream)) {
    if (!add) on_gpu(stream, cuda::fill_zero, launches::fill_zero, out);
    return on_gpu(stream, cuda::sum, launches::sum, x, f64_addend(out), true);
  }
  stream.run("sum", [=] {
    const std::span<double> numbers(out.as<double>(), ExactSum::kNumbers);
    ExactSum sum;
    if (add) sum.add(numbers);
    sum.add(x.as<float>(), x.numel);
    std::ranges::copy(sum.numbers(), numbers.begin());
  });
}

std::int64_t find_non_finite(Stream& stream, ConstTensor x) {
  if (is_cuda(stream)) return cuda::find_non_finite(stream, x);
  std::int64_t found = -1;
  stream.run("find_non_finite",
             [=, &stream, &found] { found = cpu::find_non_finite(stream.team(), x); });
  stream.synchronize();
  return found;
}

void fill_normal(Stream& stream, Tensor out, const RandomAddress& address,
                 std::int64_t first_element, float mean, float stddev) {
  SHERD_CHECK(out.dtype == DType::kF32, "fill_normal into {}", name_of(out.dtype));
  SHERD_CHECK(first_element >= 0, "first element {}", first_element);
  if (is_cuda(stream)) {
    return on_gpu(stream, cuda::fill_normal, launches::fill_normal, out, address, first_element,
                  mean, stddev);
  }
  stream.run("fill_normal", [=, &stream] {
    cpu::fill_normal(stream.team(), out, address, first_element, mean, stddev);
  });
}

void fill_uniform(Stream& stream, Tensor out, const RandomAddress& address,
                  std::int64_t first_element, float bound) {
  SHERD_CHECK(out.dtype == DType::kF32, "fill_uniform into {}", name_of(out.dtype));
  if (is_cuda(stream))
    return on_gpu(stream, cuda::fill_uniform, launches::fill_uniform, out, address, first_element,
                  bound);
  stream.run("fill_uniform", [=, &stream] {
    cpu::fill_uniform(stream.team(), out, address, first_element, bound);
  });
}

}  // namespace sherd::kernels
