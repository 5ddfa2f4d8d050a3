/// Weights whose rows stand side by side, which is how a step of decoding reads them fastest: all of its weights are
/// read from memory once, and a processor follows one stream of bytes better than the sixteen that sixteen rows are.
///
///   w [O, I] of which the first `interleaved_rows` are: [rows / 16][units][16], a unit being 32 bits of a row: one
///   f32, or two bf16 neighbours. The rest, O mod 32 rows, stay as they were, behind.
///
/// Every row takes the bytes it took, so a matrix is turned in its own memory.
///
/// Bits     what reads it has those of the same matrix row by row.
/// Devices  CPUs alone. Which matrices: `can_interleave`.
#pragma once

#include "core/stream.h"
#include "core/tensor.h"

namespace sherd::kernels {

/// f32, and bf16 with an even number of inputs where matmuls don't use AMX, whose sums are others (kernels/isa.h).
bool can_interleave(DType dtype, std::int64_t inputs);

/// How many of the rows stand side by side.
inline constexpr std::int64_t interleaved_rows(std::int64_t outputs) {
  return outputs / 32 * 32;
}

/// w [O, I], row by row, becomes interleaved.
void interleave(Stream& stream, const Tensor& w, std::int64_t inputs);

}  // namespace sherd::kernels
