/// Weights with interleaved rows, the fastest order for a decoding step. It reads all weights from
/// memory once, and a processor prefetches one stream of bytes better than sixteen, one per row.
///
///   The first `interleaved_rows` rows of w [O, I] become [rows / 16][units][16]. A unit is 32 bits
///   of a row: one f32, or two neighbouring bf16. The last O mod 32 rows follow unchanged.
///
/// A row keeps its size in bytes, so a matrix is interleaved in place.
///
/// Bits     kernels give the same results as with a row-major matrix.
/// Devices  CPUs only. `can_interleave` says which matrices.
#pragma once

#include "core/stream.h"
#include "core/tensor.h"

namespace sherd::kernels {

/// f32, and bf16 with an even number of inputs, unless matmuls use AMX, whose sums differ
/// (kernels/isa.h).
bool can_interleave(DType dtype, std::int64_t inputs);

/// Number of rows that are interleaved.
inline constexpr std::int64_t interleaved_rows(std::int64_t outputs) {
  return outputs / 32 * 32;
}

/// Interleaves w [O, I] in place.
void interleave(Stream& stream, const Tensor& w, std::int64_t inputs);

}  // namespace sherd::kernels
