#include "kernels/outer_step.h"

#include "core/error.h"
#include "kernels/cpu/outer_step.h"
#include "kernels/device.h"

namespace sherd::kernels {
namespace {

void check_alike(ConstTensor a, ConstTensor b) {
  SHERD_CHECK(a.numel == b.numel && a.dtype == DType::kF32 && b.dtype == DType::kF32,
              "an outer step on {} elements of {} and {} of {}", a.numel, name_of(a.dtype), b.numel,
              name_of(b.dtype));
}

}  // namespace

void outer_change(Stream& stream, ConstTensor old, ConstTensor local, Tensor change) {
  check_alike(old, local);
  check_alike(old, change);
  SHERD_CHECK(!is_cuda(stream), "outer steps are for CPUs");
  stream.run("outer_change",
             [=, &stream] { cpu::outer_change(stream.team(), old, local, change); });
}

void outer_step(Stream& stream, const OuterStep& args) {
  check_alike(args.sum, args.old);
  SHERD_CHECK(args.replicas >= 1 && (args.momentum == 0.0f) == !args.velocity,
              "an outer step of {} replicas with momentum {}", args.replicas, args.momentum);
  if (args.velocity) check_alike(args.sum, args.velocity);
  SHERD_CHECK(!is_cuda(stream), "outer steps are for CPUs");
  stream.run("outer_step", [=, &stream] { cpu::outer_step(stream.team(), args); });
}

}  // namespace sherd::kernels
