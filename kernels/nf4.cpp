#include "kernels/nf4.h"

#include "core/error.h"
#include "kernels/cpu/nf4.h"

namespace sherd::kernels {
namespace {

void require_cpu(const Stream& stream) {
  if (stream.device() == DeviceKind::kCpu) return;
  throw UsageError(
      "adapter.base_dtype is nf4, which runs on CPUs only, for now: set run.device: cpu.");
}

}  // namespace

void nf4_encode(Stream& stream, ConstTensor x, Tensor codes, Tensor scales) {
  require_cpu(stream);
  CHECK(codes.numel == (x.numel + 1) / 2 && scales.numel == nf4_blocks(x.numel),
        "{} elements into {} bytes and {} scales", x.numel, codes.numel, scales.numel);
  stream.run("nf4_encode", [=, &stream] { cpu::nf4_encode(stream.team(), x, codes, scales); });
}

void nf4_encode_scales(Stream& stream, ConstTensor scales, Tensor codes, Tensor ranges) {
  require_cpu(stream);
  CHECK(codes.numel == scales.numel && ranges.numel == nf4_ranges(scales.numel * kNf4Block),
        "{} scales into {} codes and {} ranges", scales.numel, codes.numel, ranges.numel);
  stream.run("nf4_encode_scales", [=] { cpu::nf4_encode_scales(scales, codes, ranges); });
}

void nf4_decode(Stream& stream, const Nf4Part& part, Tensor out) {
  require_cpu(stream);
  CHECK(part.codes.numel == (out.numel + 1) / 2 && part.scale_codes.numel == nf4_blocks(out.numel),
        "{} bytes and {} scales into {} elements", part.codes.numel, part.scale_codes.numel,
        out.numel);
  stream.run("nf4_decode", [=, &stream] { cpu::nf4_decode(stream.team(), part, out); });
}

}  // namespace sherd::kernels
