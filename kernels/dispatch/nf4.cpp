#include "kernels/nf4.h"

#include <algorithm>
#include <array>

#include "core/error.h"
#include "kernels/cpu/nf4.h"
#include "kernels/device.h"
#include "kernels/eight_bits.h"
#include "kernels/launches/on_gpu.h"
#include "kernels/nf4_codes.h"

namespace sherd::kernels {
namespace {

// Quantiles of a normal distribution, equally many on each side of 0 (the paper's appendix E).
constexpr std::array<float, 16> kValues = {-1.0f,
                                           -0.6961928009986877f,
                                           -0.5250730514526367f,
                                           -0.39491748809814453f,
                                           -0.28444138169288635f,
                                           -0.18477343022823334f,
                                           -0.09105003625154495f,
                                           0.0f,
                                           0.07958029955625534f,
                                           0.16093020141124725f,
                                           0.24611230194568634f,
                                           0.33791524171829224f,
                                           0.44070982933044434f,
                                           0.5626170039176941f,
                                           0.7229568362236023f,
                                           1.0f};

Nf4Tables make_tables() {
  Nf4Tables tables;
  const auto fill = [](const auto& values, float* of_codes, float* middles) {
    std::copy(values.begin(), values.end(), of_codes);
    for (std::size_t i = 0; i + 1 < values.size(); ++i) {
      middles[i] = (values[i] + values[i + 1]) / 2.0f;
    }
  };
  fill(kValues, tables.value, tables.middle);
  fill(dynamic_values(true), tables.dynamic, tables.dynamic_middle);
  return tables;
}

}  // namespace

const Nf4Tables& nf4_tables() {
  static const Nf4Tables tables = make_tables();
  return tables;
}

float dynamic_value(int code) {
  return nf4_tables().dynamic[code];
}

void nf4_encode(Stream& stream, ConstTensor x, Tensor codes, Tensor scales) {
  SHERD_CHECK(codes.numel == (x.numel + 1) / 2 && scales.numel == nf4_blocks(x.numel),
              "{} elements into {} bytes and {} scales", x.numel, codes.numel, scales.numel);
  if (is_cuda(stream))
    return on_gpu(stream, cuda::nf4_encode, launches::nf4_encode, x, codes, scales);
  stream.run("nf4_encode", [=, &stream] { cpu::nf4_encode(stream.team(), x, codes, scales); });
}

void nf4_encode_scales(Stream& stream, ConstTensor scales, Tensor codes, Tensor ranges) {
  SHERD_CHECK(codes.numel == scales.numel && ranges.numel == nf4_ranges(scales.numel * kNf4Block),
              "{} scales into {} codes and {} ranges", scales.numel, codes.numel, ranges.numel);
  if (is_cuda(stream))
    return on_gpu(stream, cuda::nf4_encode_scales, launches::nf4_encode_scales, scales, codes,
                  ranges);
  stream.run("nf4_encode_scales", [=] { cpu::nf4_encode_scales(scales, codes, ranges); });
}

void nf4_decode(Stream& stream, const Nf4Part& part, Tensor out) {
  SHERD_CHECK(
      part.codes.numel == (out.numel + 1) / 2 && part.scale_codes.numel == nf4_blocks(out.numel),
      "{} bytes and {} scales into {} elements", part.codes.numel, part.scale_codes.numel,
      out.numel);
  if (is_cuda(stream)) return on_gpu(stream, cuda::nf4_decode, launches::nf4_decode, part, out);
  stream.run("nf4_decode", [=, &stream] { cpu::nf4_decode(stream.team(), part, out); });
}

}  // namespace sherd::kernels
