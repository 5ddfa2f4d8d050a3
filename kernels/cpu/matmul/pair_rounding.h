/// Rounds computed floats to pairs of bf16 (tile.h), to nearest even, as attention does with its
/// weights.
#pragma once

#include <cstdint>

namespace sherd::kernels::cpu {

struct PairRounding {
  /// A row of an even `depth`, in place: unit u from row[2 u] and row[2 u + 1].
  void (*pack)(float* row, std::int64_t depth);
  /// out[j] = the pair of even[j] and odd[j]; null rows are zeros.
  void (*turn)(const float* even, const float* odd, std::int64_t columns, float* out);
};

/// With the processor's own conversions, which take subnormals as zero, as dot products of pairs
/// do; null if not compiled.
const PairRounding* avx512_bf16_rounding();

}  // namespace sherd::kernels::cpu
