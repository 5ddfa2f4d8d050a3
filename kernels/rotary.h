/// Rotary position embedding, in place on the query and key heads of a packed qkv tensor.
///
///   for pair j < K/2 of a head at position p:
///   angle              = p * f_j
///   (x[j], x[j + K/2]) = the pair rotated by angle, times the table's factor
///
/// (Su et al. 2021; the two elements of a pair lie half a head apart.) kernels/rotary_frequencies.h
/// defines the frequencies f_j and the factor; a pair of frequency 0 is unchanged.
///
/// The backward is the rotation by -angle.
///
/// Shapes   qkv [B * S, (H + 2 G) * K]: H query heads, G key heads, G value heads (unchanged), of
///          width K (even). table [S, K] f32: row p holds the cosines of the K/2 angles, then their
///          sines.
/// Types    qkv f32, bf16 or f16; computed in f32.
#pragma once

#include "core/stream.h"
#include "core/tensor.h"
#include "kernels/rotary_frequencies.h"

namespace sherd::kernels {

/// For longrope: whether a text of this length uses the long list.
bool takes_long_factors(const RotaryFrequencies& frequencies, std::int64_t length);
/// The frequencies with the list for texts of this length, whatever the number of rows of a table.
RotaryFrequencies for_length(RotaryFrequencies frequencies, std::int64_t length);

/// Fills `table` [positions, head_width] in double precision, rounded once.
/// Errors   UsageError on a GPU for heads wider than 256, which are unsupported there.
void rotary_table(Stream& stream, Tensor table, std::int64_t positions, std::int64_t head_width,
                  const RotaryFrequencies& frequencies);

struct Rotary {
  std::int64_t sequences = 0, positions = 0;                   ///< B, S
  std::int64_t query_heads = 0, kv_heads = 0, head_width = 0;  ///< H, G, K
  ConstTensor table;
  Tensor qkv;
  bool inverse = false;
  ConstTensor token_positions{};  ///< i32 [B * S], below S; empty: row mod S
  bool queries_only = false;      ///< keys stay as they are
};
void rotary(Stream& stream, const Rotary& args);

}  // namespace sherd::kernels
