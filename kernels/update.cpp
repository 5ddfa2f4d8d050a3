#include "kernels/update.h"

#include "core/error.h"
#include "kernels/cpu/update.h"
#include "kernels/device.h"

namespace sherd::kernels {
namespace {

void check_f32(ConstTensor tensor, std::int64_t numel) {
  CHECK(tensor.dtype == DType::kF32 && tensor.numel == numel,
        "{} elements of {} where {} of f32 were expected", tensor.numel, name_of(tensor.dtype),
        numel);
}

void check_segments(std::span<const UpdateSegment> segments, std::int64_t numel) {
  std::int64_t end = 0;
  for (const UpdateSegment& segment : segments) {
    CHECK(segment.first >= end && segment.count >= 0 && segment.first + segment.count <= numel,
          "segment [{}, +{}) after {} in a slice of {}", segment.first, segment.count, end, numel);
    end = segment.first + segment.count;
  }
}

}  // namespace

void adamw_update(Stream& stream, const AdamWUpdate& args) {
  const std::int64_t numel = args.parameter.numel;
  check_f32(args.parameter, numel);
  check_f32(args.gradient, numel);
  check_f32(args.exp_avg, numel);
  check_f32(args.exp_avg_sq, numel);
  check_segments(args.segments, numel);
  CHECK(args.time_step >= 1, "time step {}", args.time_step);
  if (stream.device() == DeviceKind::kCuda) no_cuda_kernel("adamw_update");
  stream.run("adamw_update", [=, &stream] { cpu::adamw_update(stream.team(), args); });
}

void sgd_update(Stream& stream, const SgdUpdate& args) {
  const std::int64_t numel = args.parameter.numel;
  check_f32(args.parameter, numel);
  check_f32(args.gradient, numel);
  if (args.momentum_buffer) check_f32(args.momentum_buffer, numel);
  CHECK(args.momentum_buffer || args.momentum == 0.0f, "momentum {} without a buffer",
        args.momentum);
  check_segments(args.segments, numel);
  if (stream.device() == DeviceKind::kCuda) no_cuda_kernel("sgd_update");
  stream.run("sgd_update", [=, &stream] { cpu::sgd_update(stream.team(), args); });
}

}  // namespace sherd::kernels
