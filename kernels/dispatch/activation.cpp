#include "kernels/activation.h"

#include "core/error.h"
#include "kernels/cpu/activation.h"
#include "kernels/device.h"
#include "kernels/launches/on_gpu.h"

namespace sherd::kernels {
namespace {

/// `in` is x or dx, `out` is y or dy.
void check(const ActivationShape& shape, ConstTensor in, ConstTensor out) {
  const std::int64_t numel = shape.tokens * shape.width;
  const std::int64_t inputs = is_gated(shape.kind) ? 2 : 1;
  SHERD_CHECK(in.numel == inputs * numel && out.numel == numel, "{} and {} elements for [{}, {}]",
              in.numel, out.numel, shape.tokens, shape.width);
  SHERD_CHECK(in.dtype == out.dtype, "{} and {}", name_of(in.dtype), name_of(out.dtype));
}

}  // namespace

void activation_forward(Stream& stream, const ActivationForward& args) {
  check(args.shape, args.x, args.y);
  if (is_cuda(stream))
    return on_gpu(stream, cuda::activation_forward, launches::activation_forward, args);
  stream.run("activation_forward", [=, &stream] { cpu::activation_forward(stream.team(), args); });
}

void activation_backward(Stream& stream, const ActivationBackward& args) {
  check(args.shape, args.x, args.dy);
  check(args.shape, args.dx, args.dy);
  if (is_cuda(stream))
    return on_gpu(stream, cuda::activation_backward, launches::activation_backward, args);
  stream.run("activation_backward",
             [=, &stream] { cpu::activation_backward(stream.team(), args); });
}

}  // namespace sherd::kernels
