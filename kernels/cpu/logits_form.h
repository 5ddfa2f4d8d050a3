/// Blocks of logits as the softmax reads them: kernels/token.h, LogitsForm.
#pragma once

#include <cmath>
#include <limits>

#include "kernels/cpu/blocks.h"
#include "kernels/cpu/vector_math.h"
#include "kernels/token.h"

namespace sherd::kernels::cpu {

inline float block_maximum(const float* x, int count) {
  float maximum = -std::numeric_limits<float>::infinity();
#pragma omp simd reduction(max : maximum)
  for (int i = 0; i < count; ++i) maximum = x[i] > maximum ? x[i] : maximum;
  return maximum;
}

/// Logits without scale or cap.
struct PlainLogits {
  static constexpr bool kPlain = true;
  const float* shape(const float* x, int, BlockScratch&) const { return x; }
  float shape(float x) const { return x; }
  float slope(float) const { return 1.0f; }
};

/// Scaled and capped logits: computed whenever they are read, and never stored.
struct ShapedLogits {
  static constexpr bool kPlain = false;
  explicit ShapedLogits(const LogitsForm& form) : scale(form.scale), cap(form.softcap) {
    if (cap > 0.0f) inverse = 1.0f / cap;
  }
  const float* shape(const float* x, int count, BlockScratch& scratch) const {
#pragma omp simd
    for (int i = 0; i < count; ++i) scratch.value[i] = shape(x[i]);
    return scratch.value;
  }
  float shape(float x) const {
    const float z = scale * x;
    return cap > 0.0f ? cap * fast_tanh(z * inverse) : z;
  }
  /// dz/dx at the x whose shape is z.
  float slope(float z) const {
    const float tanh = z * inverse;
    return scale * std::fma(-tanh, tanh, 1.0f);  // inverse is 0 without a cap
  }
  float scale, cap, inverse = 0.0f;
};

}  // namespace sherd::kernels::cpu
