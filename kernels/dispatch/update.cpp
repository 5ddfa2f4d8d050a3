#include "kernels/update.h"

#include "core/error.h"
#include "core/exact_sum.h"
#include "kernels/cpu/update.h"
#include "kernels/device.h"
#include "kernels/eight_bits.h"
#include "kernels/launches/on_gpu.h"

namespace sherd::kernels {
namespace {

void check_common(const UpdateCommon& args) {
  const std::int64_t numel = args.parameter.numel;
  SHERD_CHECK(args.parameter.dtype == DType::kF32, "parameters of {}",
              name_of(args.parameter.dtype));
  SHERD_CHECK(args.gradient.numel == numel, "{} gradients of {} parameters", args.gradient.numel,
              numel);
  SHERD_CHECK(!args.rounded || (args.rounded.numel == numel && size_of(args.rounded.dtype) == 2),
              "{} rounded parameters of {}, of {}", args.rounded.numel, numel,
              name_of(args.rounded.dtype));
  std::int64_t end = 0;
  for (const UpdateSegment& segment : args.segments) {
    SHERD_CHECK(
        segment.first >= end && segment.count >= 0 && segment.first + segment.count <= numel,
        "segment [{}, +{}) after {} in a slice of {}", segment.first, segment.count, end, numel);
    end = segment.first + segment.count;
  }
}

void check_moment(const UpdateCommon& args, const Tensor& moment) {
  SHERD_CHECK(moment.numel == args.parameter.numel &&
                  (moment.dtype == DType::kF32 || moment.dtype == DType::kBF16),
              "a moment of {} elements of {} for {} parameters", moment.numel,
              name_of(moment.dtype), args.parameter.numel);
}

// Of Adam and Lion, which may have their moments in 8 bits.
void check_moment(const UpdateCommon& args, const Tensor& moment, const Tensor& scales) {
  if (moment.dtype != DType::kU8) return check_moment(args, moment);
  SHERD_CHECK(moment.numel == args.parameter.numel && scales.dtype == DType::kF32 &&
                  scales.numel == eight_bit_blocks(moment.numel),
              "a moment of {} elements with {} scales for {} parameters", moment.numel,
              scales.numel, args.parameter.numel);
  for (const UpdateSegment& segment : args.segments) {
    SHERD_CHECK(segment.first % kEightBitBlock == 0 && segment.first_element % kEightBitBlock == 0,
                "element {} at {} isn't the first of a block", segment.first_element,
                segment.first);
  }
}

void check_sums(const UpdateCommon& args, const Tensor& sums) {
  SHERD_CHECK(
      sums.dtype == DType::kF64 &&
          sums.numel >= 2 * ExactSum::kNumbers * static_cast<std::int64_t>(args.segments.size()),
      "{} numbers for {} segments", sums.numel, args.segments.size());
}

void check_ratios(const UpdateCommon& args, std::span<const float> ratios) {
  SHERD_CHECK(ratios.size() == args.segments.size(), "{} ratios for {} segments", ratios.size(),
              args.segments.size());
}

// Of the updates that don't round.
void check_without_rounding(const UpdateCommon& args) {
  check_common(args);
  SHERD_CHECK(!args.rounded, "{} rounded parameters that nobody writes", args.rounded.numel);
}

void check_lamb(const LambUpdate& args) {
  check_without_rounding(args.common);
  check_moment(args.common, args.exp_avg);
  check_moment(args.common, args.exp_avg_sq);
  SHERD_CHECK(args.update_number >= 1, "time step {}", args.update_number);
}

}  // namespace

void adam_update(Stream& stream, const AdamUpdate& args) {
  check_common(args.common);
  check_moment(args.common, args.exp_avg, args.common.scales);
  check_moment(args.common, args.exp_avg_sq, args.common.second_scales);
  SHERD_CHECK(args.exp_avg.dtype == args.exp_avg_sq.dtype, "moments of {} and {}",
              name_of(args.exp_avg.dtype), name_of(args.exp_avg_sq.dtype));
  SHERD_CHECK(args.update_number >= 1, "time step {}", args.update_number);
  if (is_cuda(stream)) return on_gpu(stream, cuda::adam_update, launches::adam_update, args);
  stream.run("adam_update", [=, &stream] { cpu::adam_update(stream.team(), args); });
}

void sgd_update(Stream& stream, const SgdUpdate& args) {
  check_common(args.common);
  if (args.momentum_buffer) check_moment(args.common, args.momentum_buffer);
  SHERD_CHECK(args.momentum_buffer || args.momentum == 0.0f, "momentum {} without a buffer",
              args.momentum);
  if (is_cuda(stream)) return on_gpu(stream, cuda::sgd_update, launches::sgd_update, args);
  stream.run("sgd_update", [=, &stream] { cpu::sgd_update(stream.team(), args); });
}

void lion_update(Stream& stream, const LionUpdate& args) {
  check_common(args.common);
  check_moment(args.common, args.exp_avg, args.common.scales);
  if (is_cuda(stream)) return on_gpu(stream, cuda::lion_update, launches::lion_update, args);
  stream.run("lion_update", [=, &stream] { cpu::lion_update(stream.team(), args); });
}

void lamb_moments(Stream& stream, const LambUpdate& args) {
  check_lamb(args);
  if (is_cuda(stream)) return on_gpu(stream, cuda::lamb_moments, launches::lamb_moments, args);
  stream.run("lamb_moments", [=, &stream] { cpu::lamb_moments(stream.team(), args); });
}

void lamb_norms(Stream& stream, const LambUpdate& args, Tensor sums) {
  check_lamb(args);
  check_sums(args.common, sums);
  if (is_cuda(stream)) {
    on_gpu(stream, cuda::fill_zero, launches::fill_zero, sums);
    return on_gpu(stream, cuda::lamb_norms, launches::lamb_norms, args, sums);
  }
  stream.run("lamb_norms", [=, &stream] { cpu::lamb_norms(stream.team(), args, sums); });
}

void lamb_apply(Stream& stream, const LambUpdate& args, std::span<const float> ratios) {
  check_lamb(args);
  check_ratios(args.common, ratios);
  if (is_cuda(stream)) return on_gpu(stream, cuda::lamb_apply, launches::lamb_apply, args, ratios);
  stream.run("lamb_apply", [=, &stream] { cpu::lamb_apply(stream.team(), args, ratios); });
}

void lars_norms(Stream& stream, const LarsUpdate& args, Tensor sums) {
  check_without_rounding(args.common);
  check_sums(args.common, sums);
  if (is_cuda(stream)) {
    on_gpu(stream, cuda::fill_zero, launches::fill_zero, sums);
    return on_gpu(stream, cuda::lars_norms, launches::lars_norms, args, sums);
  }
  stream.run("lars_norms", [=, &stream] { cpu::lars_norms(stream.team(), args, sums); });
}

void lars_apply(Stream& stream, const LarsUpdate& args, std::span<const float> ratios) {
  check_without_rounding(args.common);
  check_moment(args.common, args.momentum_buffer);
  check_ratios(args.common, ratios);
  if (is_cuda(stream)) return on_gpu(stream, cuda::lars_apply, launches::lars_apply, args, ratios);
  stream.run("lars_apply", [=, &stream] { cpu::lars_apply(stream.team(), args, ratios); });
}

void muon_momentum(Stream& stream, const MuonUpdate& args) {
  check_without_rounding(args.common);
  check_moment(args.common, args.momentum_buffer);
  SHERD_CHECK(args.update.dtype == DType::kF32 && args.update.numel == args.common.parameter.numel,
              "{} updates of {} parameters", args.update.numel, args.common.parameter.numel);
  if (is_cuda(stream)) return on_gpu(stream, cuda::muon_momentum, launches::muon_momentum, args);
  stream.run("muon_momentum", [=, &stream] { cpu::muon_momentum(stream.team(), args); });
}

void dion_momentum(Stream& stream, const MuonUpdate& args) {
  check_without_rounding(args.common);
  check_moment(args.common, args.momentum_buffer);
  SHERD_CHECK(!is_cuda(stream) && args.momentum_buffer.dtype == DType::kF32, "dion on a GPU");
  SHERD_CHECK(args.update.dtype == DType::kF32 && args.update.numel == args.common.parameter.numel,
              "{} updates of {} parameters", args.update.numel, args.common.parameter.numel);
  stream.run("dion_momentum", [=, &stream] { cpu::dion_momentum(stream.team(), args); });
}

void muon_apply(Stream& stream, const MuonUpdate& args, std::span<const float> ratios) {
  check_without_rounding(args.common);
  SHERD_CHECK(args.update.dtype == DType::kF32 && args.update.numel == args.common.parameter.numel,
              "{} updates of {} parameters", args.update.numel, args.common.parameter.numel);
  check_ratios(args.common, ratios);
  if (is_cuda(stream)) return on_gpu(stream, cuda::muon_apply, launches::muon_apply, args, ratios);
  stream.run("muon_apply", [=, &stream] { cpu::muon_apply(stream.team(), args, ratios); });
}

}  // namespace sherd::kernels
