/// Philox words in bulk, and the dropout masks made of them.
#pragma once

#include <cstdint>

#include "kernels/cpu/blocks.h"
#include "kernels/dropout.h"

namespace sherd::kernels::cpu {

/// Room for the words of one block of elements that may start anywhere.
struct WordScratch {
  alignas(64) std::uint32_t word[kBlock + 32];
};

/// The words of elements [first, first + count), count <= kBlock; lies in `scratch`.
const std::uint32_t* random_words(const RandomAddress& address, std::int64_t first, int count,
                                  WordScratch& scratch);

/// y[i] = keep(e) ? scale * x[i] : 0 with e = dropout.first_element + offset + i; count <= kBlock.
/// y may be x. `dropout` must be active.
inline void apply_dropout(const Dropout& dropout, std::int64_t offset, int count, const float* x,
                          float* y) {
  WordScratch scratch;
  const std::uint32_t* words =
      random_words(dropout.address, dropout.first_element + offset, count, scratch);
  const std::uint32_t threshold = dropout.threshold();
  const float scale = dropout.scale();
#pragma omp simd
  for (int i = 0; i < count; ++i) y[i] = words[i] >= threshold ? x[i] * scale : 0.0f;
}

}  // namespace sherd::kernels::cpu
