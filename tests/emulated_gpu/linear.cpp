// Matmuls of the emulated GPU where NVIDIA's headers aren't: the CPU's, in place of kernels/cuda/linear.cpp,
// matmul_plan.cpp and grouped_products.cpp.
#include "kernels/cpu/linear.h"
#include "core/cuda_device.h"
#include "cuda_runtime_api.h"
#include "kernels/cuda/column_sums.h"
#include "kernels/cuda/expert_products.h"
#include "kernels/cuda/forms.h"
#include "kernels/cuda/group_offsets.h"
#include "kernels/cuda/grouped_products.h"
#include "kernels/cuda/matmul_tuning.h"
#include "kernels/libraries.h"
#include "tests/fake_cuda/grouped.h"
#include "tests/support/devices/host_scratch.h"

namespace sherd::kernels::cuda {
namespace {

using test::host_scratch;

ActivationShape gelu_of(std::int64_t tokens, std::int64_t width) {
  return {ActivationKind::kGelu, tokens, width};
}

// `matmul` in its stream's order, with scratch of the thread that computes it.
template <class Args, class Compute>
void enqueue(Stream& stream, const Args& matmul, DType dtype, Compute compute) {
  emulated::enqueue(cuda_stream(stream).handle(), "matmul", [&stream, matmul, dtype, compute] {
    Args args = matmul;
    args.workspace = host_scratch(args.shape, dtype);
    compute(stream.team(), args);
    return std::vector<emulated::Touched>();
  });
}

}  // namespace

void linear_forward(Stream& stream, const LinearForward& args) {
  LinearForward matmul = args;
  if (args.gelu_input) matmul.y = args.gelu_input;
  enqueue(stream, matmul, args.x.dtype, cpu::linear_forward);
  if (!args.gelu_input) return;
  activation_forward(stream,
                     {gelu_of(args.shape.tokens, args.shape.outputs), args.gelu_input, args.y});
}

void linear_backward_input(Stream& stream, const LinearBackwardInput& args) {
  enqueue(stream, args, args.dy.dtype, cpu::linear_backward_input);
  if (!args.gelu_input) return;
  activation_backward(
      stream, {gelu_of(args.shape.tokens, args.shape.inputs), args.gelu_input, args.dx, args.dx});
}

void linear_backward_weight(Stream& stream, const LinearBackwardWeight& args) {
  LinearBackwardWeight matmul = args;
  matmul.dbias = {};
  enqueue(stream, matmul, args.dy.dtype, cpu::linear_backward_weight);
  if (args.dbias) {
    sum_columns(stream, args.dy, args.shape, args.dbias, args.add_to_output, args.workspace);
  }
}

void multiply_expert_rows(CudaStream& stream, const device_common::MatmulKey& key,
                          std::int64_t rows, const MatmulOperands& x, void*) {
  const auto in = [&](const void* data, std::int64_t numel) {
    return ConstTensor(data, key.in, numel);
  };
  const auto out = [&](std::int64_t numel) { return Tensor{x.d, key.out, numel}; };
  const std::int64_t m = key.m, k = key.k;
  if (key.transpose_b) {
    return linear_backward_weight(stream, {.shape = {rows, m, key.n},
                                           .dy = in(x.b, rows * key.n),
                                           .x = in(x.a, rows * m),
                                           .dw = out(m * key.n),
                                           .dbias = {},
                                           .add_to_output = key.add_to_output,
                                           .workspace = {}});
  }
  const ConstTensor w = in(x.a, m * k), own = in(x.b, rows * k);
  if (key.transpose_a) {
    return linear_forward(
        stream,
        {.shape = {rows, k, m}, .x = own, .w = w, .bias = {}, .y = out(rows * m), .workspace = {}});
  }
  linear_backward_input(
      stream, {.shape = {rows, m, k}, .dy = own, .w = w, .dx = out(rows * m), .workspace = {}});
}

void multiply_grouped_rows(Stream& stream, const GroupedKey& key,
                           const device_common::GroupOffsets& offsets,
                           const GroupedOperands& operands, void* workspace) {
  auto* on_device =
      reinterpret_cast<std::int32_t*>(static_cast<char*>(workspace) + kGroupedScratchBytes);
  set_group_offsets(stream, offsets, key.experts, on_device);
  emulated::enqueue(cuda_stream(stream).handle(), "grouped products", [=] {
    grouped_of(key, operands, on_device, workspace).run();
    return std::vector<emulated::Touched>();
  });
}

double seconds_on_device(Stream&, int, const std::function<void()>&, const std::function<void()>&) {
  return 0.0;
}

device_common::MatmulPlace matmul_place(int) {
  return {};
}
std::vector<device_common::TimedAlgorithm> time_algorithms(Stream&, const device_common::MatmulKey&,
                                                           const MatmulOperands&, const Tensor&,
                                                           const MatmulTiming&) {
  return {};
}

}  // namespace sherd::kernels::cuda

namespace sherd::kernels {

std::string measured_matmuls(int) {
  return "";
}

}  // namespace sherd::kernels
