/// Philox words in bulk, and the dropout masks made from them.
#pragma once

#include <cstdint>

#include "kernels/cpu/blocks.h"
#include "kernels/dropout.h"

namespace sherd::kernels::cpu {

/// Room for the words of one block of elements that may start anywhere.
struct WordScratch {
  alignas(64) std::uint32_t word[kBlock + 32];
};

/// The words of elements [first, first + count), count <= kBlock; stored in `scratch`.
const std::uint32_t* random_words(const RandomAddress& address, std::int64_t first, int count,
                                  WordScratch& scratch);

/// y[i] = keep(e) ? scale * x[i] : 0 with e the element `offset` + i of the dropout's tensor; count
/// <= kBlock. y may be x. `dropout` must be active.
inline void apply_dropout(const Dropout& dropout, std::int64_t offset, int count, const float* x,
                          float* y) {
  WordScratch scratch;
  const std::uint32_t threshold = dropout.threshold();
  const float scale = dropout.scale();
  for (int done = 0; done < count;) {
    const Dropout::Run run = dropout.run_from(offset + done, count - done);
    const int here = static_cast<int>(run.count);
    const std::uint32_t* words = random_words(dropout.address, run.element, here, scratch);
    const float* from = x + done;
    float* to = y + done;
#pragma omp simd
    for (int i = 0; i < here; ++i) to[i] = words[i] >= threshold ? from[i] * scale : 0.0f;
    done += here;
  }
}

}  // namespace sherd::kernels::cpu
