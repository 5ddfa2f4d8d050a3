#include "kernels/block_codec.h"

#include "core/error.h"
#include "kernels/cpu/block_codec.h"
#include "kernels/device.h"
#include "kernels/launches/on_gpu.h"

namespace sherd::kernels {

std::string_view name_of(BlockFormat format) {
  switch (format) {
    case BlockFormat::kF32:
      return "f32";
    case BlockFormat::kInt8:
      return "int8_block64";
    case BlockFormat::kInt4:
      return "int4_block64";
  }
  return "?";
}

void encode_blocks(Stream& stream, BlockFormat format, ConstTensor x, Tensor bytes) {
  SHERD_CHECK(x.dtype == DType::kF32 && bytes.numel == coded_bytes(format, x.numel),
              "{} elements of {} into {} bytes of {}", x.numel, name_of(x.dtype), bytes.numel,
              name_of(format));
  if (is_cuda(stream)) {
    return on_gpu(stream, cuda::encode_blocks, launches::encode_blocks, format, x, bytes);
  }
  stream.run("encode_blocks",
             [=, &stream] { cpu::encode_blocks(stream.team(), format, x, bytes); });
}

void sum_blocks(Stream& stream, BlockFormat format, const CodedParts& parts, Tensor out,
                bool onto_out) {
  SHERD_CHECK(parts.count >= 1 && parts.first.numel == coded_bytes(format, out.numel),
              "{} times {} bytes of {} into {} elements", parts.count, parts.first.numel,
              name_of(format), out.numel);
  if (is_cuda(stream)) {
    CodedParts all = parts;
    all.first.numel += (parts.count - 1) * parts.stride;
    return on_gpu(stream, cuda::sum_blocks, launches::sum_blocks, format, all, out, onto_out);
  }
  stream.run("sum_blocks",
             [=, &stream] { cpu::sum_blocks(stream.team(), format, parts, out, onto_out); });
}

void round_to_blocks(Stream& stream, BlockFormat format, ConstTensor x, Tensor out) {
  SHERD_CHECK(x.dtype == DType::kF32 && x.numel == out.numel, "{} elements of {} into {}", x.numel,
              name_of(x.dtype), out.numel);
  if (is_cuda(stream)) {
    return on_gpu(stream, cuda::round_to_blocks, launches::round_to_blocks, format, x, out);
  }
  stream.run("round_to_blocks",
             [=, &stream] { cpu::round_to_blocks(stream.team(), format, x, out); });
}

}  // namespace sherd::kernels
