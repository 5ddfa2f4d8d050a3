/// Numbers as ranks send them over slow links: 8 or 4 bits each, and a scale for every 64 of them.
/// (Blocks of gradients and weights: ZeRO++, arXiv:2306.10209; the rounding is ours.)
///
///   block    64 elements, counted from the first one; the last block may be shorter
///   m_b      = max |x_i| over block b
///   scale_b  = m_b / Q in f32, rounded up to bf16; Q = 127 for int8, 7 for int4
///   code_i   = x_i / scale_b in f32, rounded to the nearest integer, a tie to the even one
///   x_i     ~= code_i * scale_b, which is exact in f32
///
/// Since scales are rounded up, codes are in [-Q, Q] without clamping. An element changes by at
/// most scale_b / 2, that is m_b / 254 or m_b / 14, times at most 1 + 2^-7.
///
/// Zeros    stay zero; m_b = 0 gives scale 0 and codes 0. A result is never -0.
/// Not finite  a block with an infinity or a NaN has the scale infinity, which is a flag. Its codes
///          are 1 for infinity, -1 for -infinity, 2 for NaN, and 0 for finite elements, which become
///          0. So a sum of such blocks isn't finite, at the same element as before.
/// Large    an element becomes infinity if code_i * scale_b exceeds f32: above 0.99 of its range.
/// kF32     is not coded: bytes are the f32 elements.
///
/// Layout   the codes of all blocks, then their scales (bf16). int4: two codes a byte, the first of
///          them in its high bits. A short block is coded as if zeros followed.
/// Bits     a function of the block's elements alone: the same on any number of threads, with every
///          instruction set, and on GPUs.
/// Cost     8.25 or 4.25 bits an element. A pass over memory.
#pragma once

#include <string_view>

#include "core/stream.h"
#include "core/tensor.h"
#include "kernels/kinds.h"

namespace sherd::kernels {

/// "f32", "int8_block64", "int4_block64".
std::string_view name_of(BlockFormat format);

inline constexpr std::int64_t kCodecBlock = 64;  ///< elements per scale

inline constexpr std::int64_t codec_blocks(std::int64_t numel) {
  return (numel + kCodecBlock - 1) / kCodecBlock;
}
/// Bytes of the codes of `blocks` blocks; their scales follow.
inline constexpr std::int64_t code_bytes(BlockFormat format, std::int64_t blocks) {
  return blocks * (format == BlockFormat::kInt8 ? kCodecBlock : kCodecBlock / 2);
}
/// Bytes of `numel` elements.
inline constexpr std::int64_t coded_bytes(BlockFormat format, std::int64_t numel) {
  if (format == BlockFormat::kF32) return numel * 4;
  return code_bytes(format, codec_blocks(numel)) + codec_blocks(numel) * 2;
}

/// x f32 [n] -> bytes u8 [coded_bytes(format, n)], which begin at a multiple of 4 bytes.
void encode_blocks(Stream& stream, BlockFormat format, ConstTensor x, Tensor bytes);

/// The same elements as encoded by several ranks: `count` times coded_bytes(format, n) bytes, of
/// which each begins `stride` bytes after the one before it, a multiple of 4.
struct CodedParts {
  ConstTensor first{};  ///< u8, of the first rank
  std::int64_t stride = 0;
  int count = 1;
};
/// out[i] = (x_0[i] + x_1[i]) + ..., or with onto_out ((out[i] + x_0[i]) + x_1[i]) + ..., of decoded
/// elements, added in f32 in this order and rounded once to out's type: f32, bf16 or f16. With one
/// part and without onto_out it decodes.
void sum_blocks(Stream& stream, BlockFormat format, const CodedParts& parts, Tensor out,
                bool onto_out = false);

/// out[i] = x[i], encoded, decoded, and rounded once to out's type. x is f32. out may be x.
void round_to_blocks(Stream& stream, BlockFormat format, ConstTensor x, Tensor out);

}  // namespace sherd::kernels
