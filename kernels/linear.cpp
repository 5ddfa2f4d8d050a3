#include "kernels/linear.h"

#include "core/thread_team.h"
#include "kernels/cpu/linear.h"
#include "kernels/cuda/forms.h"

namespace sherd::kernels {
namespace {

// `what` is a tensor of the kernel's own type with exactly `numel` elements.
void check_tensor(std::string_view what, const ConstTensor& tensor, DType dtype,
                  std::int64_t numel) {
  CHECK(tensor && tensor.dtype == dtype && tensor.numel == numel,
        "linear: {} is {} [{}], expected {} [{}]", what, name_of(tensor.dtype), tensor.numel,
        name_of(dtype), numel);
}

void check_shape(const LinearShape& shape) {
  CHECK(shape.tokens >= 1 && shape.inputs >= 1 && shape.outputs >= 1,
        "linear: {} tokens, {} inputs, {} outputs", shape.tokens, shape.inputs, shape.outputs);
}

}  // namespace

void linear_forward(Stream& stream, const LinearForward& args) {
  const auto [T, I, O] = args.shape;
  check_shape(args.shape);
  check_tensor("x", args.x, args.x.dtype, T * I);
  check_tensor("w", args.w, args.x.dtype, O * I);
  check_tensor("y", args.y, args.x.dtype, T * O);
  if (args.bias) check_tensor("bias", args.bias, args.x.dtype, O);
  if (stream.device() == DeviceKind::kCuda) return cuda::linear_forward(stream, args);
  stream.run("linear_forward", [&stream, args] { cpu::linear_forward(stream.team(), args); });
}

void linear_backward_input(Stream& stream, const LinearBackwardInput& args) {
  const auto [T, I, O] = args.shape;
  check_shape(args.shape);
  check_tensor("dy", args.dy, args.dy.dtype, T * O);
  check_tensor("w", args.w, args.dy.dtype, O * I);
  check_tensor("dx", args.dx, args.dy.dtype, T * I);
  if (stream.device() == DeviceKind::kCuda) return cuda::linear_backward_input(stream, args);
  stream.run("linear_backward_input",
             [&stream, args] { cpu::linear_backward_input(stream.team(), args); });
}

void linear_backward_weight(Stream& stream, const LinearBackwardWeight& args) {
  const auto [T, I, O] = args.shape;
  check_shape(args.shape);
  check_tensor("dy", args.dy, args.dy.dtype, T * O);
  check_tensor("x", args.x, args.dy.dtype, T * I);
  check_tensor("dw", args.dw, args.dw.dtype, O * I);
  if (args.dbias) check_tensor("dbias", args.dbias, args.dw.dtype, O);
  if (stream.device() == DeviceKind::kCuda) return cuda::linear_backward_weight(stream, args);
  stream.run("linear_backward_weight",
             [&stream, args] { cpu::linear_backward_weight(stream.team(), args); });
}

std::int64_t linear_workspace_bytes(const LinearShape& shape, DType dtype, DType /*grad_dtype*/,
                                    int num_threads) {
  check_shape(shape);
  return cpu::linear_workspace_bytes(shape, dtype, num_threads);
}

}  // namespace sherd::kernels
