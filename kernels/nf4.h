/// NF4: a number in four bits, and a scale for every 64 of them (QLoRA: Dettmers et al.,
/// arXiv:2305.14314, §3).
///
///   block    64 elements of a tensor, counted from its first one; the last block may be shorter
///   scale_b  = max |x_i| over block b
///   code_i   = nearest of 16 values to x_i * (1 / scale_b), all in f32; a tie gives the lower one
///   x_i     ~= value[code_i] * scale_b, in f32, rounded once to the type of the result
///
/// Scales are themselves quantised to 8 bits (double quantisation):
///
///   group    256 blocks of a tensor
///   mean     of all scales of the tensor, added in f64 in their order, rounded once
///   range_g  = max |scale_b - mean| over group g
///   code_b   = nearest of 256 values (dynamic_value, Dettmers, arXiv:1511.04561) to
///              (scale_b - mean) * (1 / range_g), in f32; a tie gives the lower one
///   scale_b ~= dynamic_value(code_b) * range_g + mean, two roundings
///
/// An element takes 4 + 8 / 64 + 32 / (64 * 256) bits. A block of zeros stays zero whatever scale
/// mean and range give it: the value of code 7 is 0.
///
/// Layout   two codes a byte, the first of them in its high bits; `ranges` begins with the mean.
/// Bits     the same on CPUs and GPUs.
#pragma once

#include "core/host_device.h"
#include "core/stream.h"
#include "core/tensor.h"

namespace sherd::kernels {

inline constexpr std::int64_t kNf4Block = 64;   ///< elements per scale
inline constexpr std::int64_t kNf4Group = 256;  ///< scales per range

inline constexpr std::int64_t nf4_blocks(std::int64_t numel) {
  return (numel + kNf4Block - 1) / kNf4Block;
}
/// Numbers in `ranges`: the mean, and one for each group.
inline constexpr std::int64_t nf4_ranges(std::int64_t numel) {
  return 1 + (nf4_blocks(numel) + kNf4Group - 1) / kNf4Group;
}

/// x f32 [n] begins with a block -> codes u8 [ceil(n / 2)], scales f32 [nf4_blocks(n)].
void nf4_encode(Stream& stream, ConstTensor x, Tensor codes, Tensor scales);

/// All scales of a tensor, f32 [B] -> codes u8 [B], ranges f32.
void nf4_encode_scales(Stream& stream, ConstTensor scales, Tensor codes, Tensor ranges);

/// Part of a tensor that begins with block `first_block`.
struct Nf4Part {
  ConstTensor codes{}, scale_codes{};
  ConstTensor ranges{};  ///< of the whole tensor
  std::int64_t first_block = 0;
  /// If the part belongs to a box with some columns of each row: the number of blocks per row, in
  /// the box and in the tensor, and the number of blocks of the box before the part. `first_block`
  /// is then the box's first block. 0: no gaps.
  std::int64_t row_blocks = 0, all_row_blocks = 0, blocks_before = 0;

  /// The index in the tensor of a block of the part.
  SHERD_HOST_DEVICE std::int64_t number_of(std::int64_t block) const {
    if (row_blocks == 0) return first_block + block;
    const std::int64_t in_box = blocks_before + block;
    return first_block + in_box / row_blocks * all_row_blocks + in_box % row_blocks;
  }
};
/// out f32, bf16 or f16.
void nf4_decode(Stream& stream, const Nf4Part& part, Tensor out);

/// The value of a scale's code, ascending: 0, 1, and with both signs the midpoints of 2^k equal
/// parts of [0.1, 1] times 10^(k - 6), for k from 0 to 6.
float dynamic_value(int code);

}  // namespace sherd::kernels
