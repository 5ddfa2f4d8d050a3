#include "kernels/linear.h"

#include "core/thread_team.h"
#include "kernels/activation.h"
#include "kernels/check_tensor.h"
#include "kernels/cpu/linear.h"
#include "kernels/cpu/matmul/tile.h"
#include "kernels/device_common/matmul_key.h"
#include "kernels/interleaved.h"
#include "kernels/isa.h"
#include "kernels/launches/on_gpu.h"

namespace sherd::kernels {
namespace {

void check_shape(const LinearShape& shape) {
  SHERD_CHECK(shape.tokens >= 1 && shape.inputs >= 1 && shape.outputs >= 1,
              "linear: {} tokens, {} inputs, {} outputs", shape.tokens, shape.inputs,
              shape.outputs);
}

// Whether GELU is taken along in the product's own kernel.
bool fuses_gelu(const Stream& stream, const LinearForward& args) {
  return stream.device() == DeviceKind::kCuda &&
         device_common::fuses_gelu(
             args.shape.outputs, args.y.dtype,
             device_common::alignment_class(args.y.dtype, args.x.data, args.w.data, args.bias.data,
                                            args.y.data, args.gelu_input.data));
}
bool fuses_gelu(const Stream& stream, const LinearBackwardInput& args) {
  return stream.device() == DeviceKind::kCuda &&
         device_common::fuses_gelu(
             args.shape.inputs, args.dx.dtype,
             device_common::alignment_class(args.dx.dtype, args.dy.data, args.w.data, args.dx.data,
                                            args.gelu_input.data));
}

ActivationShape gelu_of(std::int64_t tokens, std::int64_t width) {
  return {ActivationKind::kGelu, tokens, width};
}

}  // namespace

void linear_forward(Stream& stream, const LinearForward& args) {
  const auto [T, I, O] = args.shape;
  check_shape(args.shape);
  check_tensor("linear: x", args.x, args.x.dtype, T * I);
  check_tensor("linear: w", args.w, args.x.dtype, O * I);
  check_tensor("linear: y", args.y, args.x.dtype, T * O);
  if (args.bias) check_tensor("linear: bias", args.bias, args.x.dtype, O);
  if (args.gelu_input) check_tensor("linear: gelu_input", args.gelu_input, args.x.dtype, T * O);
  if (args.residual) check_tensor("linear: residual", args.residual, args.x.dtype, T * O);
  SHERD_CHECK(!args.residual || (!args.gelu_input && args.residual.data != args.y.data),
              "linear: a residual stream after GELU, or in the output's place");
  SHERD_CHECK(!args.interleaved || (!is_cuda(stream) && can_interleave(args.x.dtype, I)),
              "linear: interleaved {} with {} inputs", name_of(args.x.dtype), I);
  if (args.gelu_input && !fuses_gelu(stream, args)) {
    linear_forward(stream, {.shape = args.shape,
                            .x = args.x,
                            .w = args.w,
                            .bias = args.bias,
                            .y = args.gelu_input,
                            .workspace = args.workspace,
                            .interleaved = args.interleaved});
    return activation_forward(stream, {gelu_of(T, O), args.gelu_input, args.y});
  }
  if (stream.device() == DeviceKind::kCuda)
    return on_gpu(stream, cuda::linear_forward, launches::linear_forward, args);
  stream.run("linear_forward", [&stream, args] { cpu::linear_forward(stream.team(), args); });
}

void linear_backward_input(Stream& stream, const LinearBackwardInput& args) {
  const auto [T, I, O] = args.shape;
  check_shape(args.shape);
  check_tensor("linear: dy", args.dy, args.dy.dtype, T * O);
  check_tensor("linear: w", args.w, args.dy.dtype, O * I);
  check_tensor("linear: dx", args.dx, args.dy.dtype, T * I);
  if (args.gelu_input) check_tensor("linear: gelu_input", args.gelu_input, args.dy.dtype, T * I);
  SHERD_CHECK(!args.gelu_input || !args.add_to_output, "linear: a gradient after GELU is added to");
  if (args.gelu_input && !fuses_gelu(stream, args)) {
    linear_backward_input(stream, {args.shape, args.dy, args.w, args.dx, false, args.workspace});
    return activation_backward(stream, {gelu_of(T, I), args.gelu_input, args.dx, args.dx});
  }
  if (stream.device() == DeviceKind::kCuda)
    return on_gpu(stream, cuda::linear_backward_input, launches::linear_backward_input, args);
  stream.run("linear_backward_input",
             [&stream, args] { cpu::linear_backward_input(stream.team(), args); });
}

void linear_backward_weight(Stream& stream, const LinearBackwardWeight& args) {
  const auto [T, I, O] = args.shape;
  check_shape(args.shape);
  check_tensor("linear: dy", args.dy, args.dy.dtype, T * O);
  check_tensor("linear: x", args.x, args.dy.dtype, T * I);
  check_tensor("linear: dw", args.dw, args.dw.dtype, O * I);
  if (args.dbias) check_tensor("linear: dbias", args.dbias, args.dw.dtype, O);
  if (stream.device() == DeviceKind::kCuda)
    return on_gpu(stream, cuda::linear_backward_weight, launches::linear_backward_weight, args);
  stream.run("linear_backward_weight",
             [&stream, args] { cpu::linear_backward_weight(stream.team(), args); });
}

std::int64_t linear_workspace_bytes(const LinearShape& most, DType dtype, DType grad_dtype,
                                    const ComputeDevice& device) {
  check_shape(most);
  if (device.kind == DeviceKind::kCuda) return device_common::matmul_workspace_bytes(most);
  return cpu::linear_workspace_bytes(most, dtype, grad_dtype);
}

double matmul_rate_of_a_thread(DType dtype) {
  return cpu::tile_rate(dtype, isa());
}

}  // namespace sherd::kernels
