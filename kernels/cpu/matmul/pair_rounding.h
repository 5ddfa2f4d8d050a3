/// Computed floats become pairs of bf16 (tile.h), rounded to nearest even: what attention does to its weights.
#pragma once

#include <cstdint>

namespace sherd::kernels::cpu {

struct PairRounding {
  /// A row of an even `depth`, in place: unit u from row[2 u] and row[2 u + 1].
  void (*pack)(float* row, std::int64_t depth);
  /// out[j] = the pair of even[j] and odd[j]; null rows are zeros.
  void (*turn)(const float* even, const float* odd, std::int64_t columns, float* out);
};

/// By the processor's own conversions, which take subnormals for zero, as dot products of pairs do; null where it isn't
/// compiled.
const PairRounding* avx512_bf16_rounding();

}  // namespace sherd::kernels::cpu
