#include "kernels/adafactor.h"

#include "core/error.h"
#include "core/exact_sum.h"
#include "kernels/cpu/adafactor.h"
#include "kernels/device.h"

namespace sherd::kernels {
namespace {

void check(const Stream& stream, const AdafactorUpdate& args) {
  const UpdateCommon& common = args.common;
  SHERD_CHECK(!is_cuda(stream), "Adafactor is for CPUs");
  SHERD_CHECK(common.parameter.dtype == DType::kF32 && !common.rounded &&
                  common.gradient.numel == common.parameter.numel,
              "{} gradients of {} parameters", common.gradient.numel, common.parameter.numel);
  SHERD_CHECK(args.places.size() == common.segments.size(), "{} places of {} segments",
              args.places.size(), common.segments.size());
}

void check_numbers(const AdafactorUpdate& args) {
  SHERD_CHECK(args.variances.dtype == DType::kF32 && args.scales.dtype == DType::kF32,
              "variances of {}", name_of(args.variances.dtype));
}

}  // namespace

void adafactor_squares(Stream& stream, const AdafactorUpdate& args, Tensor sums) {
  check(stream, args);
  SHERD_CHECK(sums.dtype == DType::kF64, "sums of {}", name_of(sums.dtype));
  stream.run("adafactor_squares",
             [=, &stream] { cpu::adafactor_squares(stream.team(), args, sums); });
}

void adafactor_variances(Stream& stream, const AdafactorVariances& args) {
  SHERD_CHECK(!is_cuda(stream), "Adafactor is for CPUs");
  SHERD_CHECK(args.sums.numel >= args.variances.numel * ExactSum::kNumbers, "{} numbers of {} sums",
              args.sums.numel, args.variances.numel);
  stream.run("adafactor_variances",
             [=, &stream] { cpu::adafactor_variances(stream.team(), args); });
}

void adafactor_norms(Stream& stream, const AdafactorUpdate& args, Tensor sums) {
  check(stream, args);
  check_numbers(args);
  stream.run("adafactor_norms", [=, &stream] { cpu::adafactor_norms(stream.team(), args, sums); });
}

void adafactor_apply(Stream& stream, const AdafactorUpdate& args, std::span<const float> ratios) {
  check(stream, args);
  check_numbers(args);
  SHERD_CHECK(ratios.size() == args.common.segments.size(), "{} ratios for {} segments",
              ratios.size(), args.common.segments.size());
  stream.run("adafactor_apply",
             [=, &stream] { cpu::adafactor_apply(stream.team(), args, ratios); });
}

}  // namespace sherd::kernels
