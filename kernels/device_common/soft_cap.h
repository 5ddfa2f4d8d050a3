/// The soft cap of Gemma 2 (arXiv:2408.00118, §2), bit-identical to the CPU's.
#pragma once

#include "kernels/device_common/math.h"

namespace sherd::kernels::device_common {

/// cap tanh(x / cap), of scores or logits. Without a cap they are unchanged.
struct SoftCap {
  float cap = 0.0f, inverse = 0.0f;

  SoftCap() = default;
  explicit SoftCap(float of) : cap(of), inverse(of > 0.0f ? 1.0f / of : 0.0f) {}

  SHERD_HOST_DEVICE float apply(float x) const {
    return cap > 0.0f ? cap * fast_tanh(x * inverse) : x;
  }
  /// The slope at the x for which `apply` returned `capped`.
  SHERD_HOST_DEVICE float slope(float capped) const {
    const float tanh = capped * inverse;
    return fmaf(-tanh, tanh, 1.0f);
  }
};

}  // namespace sherd::kernels::device_common
