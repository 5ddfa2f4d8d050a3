#include "kernels/norm.h"

#include "core/error.h"
#include "kernels/cpu/norm/norm.h"
#include "kernels/device.h"
#include "kernels/device_common/norm_blocks.h"
#include "kernels/launches/on_gpu.h"

namespace sherd::kernels {
namespace {

void check(ConstTensor tensor, DType dtype, std::int64_t numel) {
  SHERD_CHECK(tensor.dtype == dtype && tensor.numel == numel,
              "{} elements of {} where {} of {} were expected", tensor.numel, name_of(tensor.dtype),
              numel, name_of(dtype));
}
void check_if_given(ConstTensor tensor, DType dtype, std::int64_t numel) {
  if (tensor) check(tensor, dtype, numel);
}

}  // namespace

void norm_forward(Stream& stream, const NormForward& args) {
  const std::int64_t tokens = args.shape.tokens, width = args.shape.width;
  const DType dtype = args.residual.dtype;
  check(args.residual, dtype, tokens * width);
  check_if_given(args.branch, dtype, tokens * width);
  check(args.weight, dtype, width);
  check_if_given(args.bias, dtype, width);
  check_if_given(args.residual_out, dtype, tokens * width);
  check(args.y, dtype, tokens * width);
  check_if_given(args.mean, DType::kF32, tokens);
  check(args.rstd, DType::kF32, tokens);
  SHERD_CHECK(!args.branch || args.residual_out, "a branch, but no place for the sum");
  SHERD_CHECK(args.mean || args.shape.kind == NormKind::kRmsNorm, "layernorm without mean");
  if (is_cuda(stream)) return on_gpu(stream, cuda::norm_forward, launches::norm_forward, args);
  stream.run("norm_forward", [=, &stream] { cpu::norm_forward(stream.team(), args); });
}

void norm_backward(Stream& stream, const NormBackward& args) {
  const std::int64_t tokens = args.shape.tokens, width = args.shape.width;
  const DType dtype = args.residual.dtype;
  check(args.residual, dtype, tokens * width);
  if (args.shape.kind == NormKind::kLayerNorm) check(args.mean, DType::kF32, tokens);
  check(args.rstd, DType::kF32, tokens);
  check(args.weight, dtype, width);
  check(args.dy, dtype, tokens * width);
  check_if_given(args.d_residual_out, dtype, tokens * width);
  check(args.d_residual_in, dtype, tokens * width);
  check_if_given(args.d_branch, dtype, tokens * width);
  SHERD_CHECK(args.dweight.numel == width && (!args.dbias || args.dbias.numel == width),
              "{} and {} elements of dweight and dbias for width {}", args.dweight.numel,
              args.dbias.numel, width);
  const std::int64_t needed = norm_backward_workspace_bytes(args.shape, compute_device(stream));
  SHERD_CHECK(args.workspace.bytes() >= needed, "a workspace of {} bytes where {} are needed",
              args.workspace.bytes(), needed);
  if (args.shape.groups) {
    SHERD_CHECK(
        !is_cuda(stream) && args.dweight.dtype == DType::kF32 && !args.add_to_weight_gradients,
        "gradients of a norm as trees on a GPU, rounded, or added to others");
    check_token_groups(args.shape.groups, tokens);
  }
  if (is_cuda(stream)) return on_gpu(stream, cuda::norm_backward, launches::norm_backward, args);
  stream.run("norm_backward", [=, &stream] { cpu::norm_backward(stream.team(), args); });
}

std::int64_t norm_backward_workspace_bytes(const NormShape& most, const ComputeDevice& device) {
  return device.kind == DeviceKind::kCuda ? device_common::norm_sums_bytes(most.tokens, most.width)
                                          : cpu::norm_backward_workspace_bytes(most);
}

}  // namespace sherd::kernels
