/// Logits as the softmax reads them: kernels/token.h, LogitsForm. Bit-identical to the CPU's
/// (kernels/cpu/logits_form.h).
#pragma once

#include "kernels/device_common/soft_cap.h"
#include "kernels/token.h"

namespace sherd::kernels::device_common {

/// Without scale or cap.
struct PlainLogits {
  SHERD_HOST_DEVICE float shape(float x) const { return x; }
  SHERD_HOST_DEVICE float slope(float) const { return 1.0f; }
};

/// Scaled and capped: computed from the logits whenever they are read.
struct ShapedLogits {
  float scale;
  SoftCap soft_cap;

  explicit ShapedLogits(const LogitsForm& form) : scale(form.scale), soft_cap(form.softcap) {}

  SHERD_HOST_DEVICE float shape(float x) const { return soft_cap.apply(scale * x); }
  /// dz/dx at the x whose shape is z.
  SHERD_HOST_DEVICE float slope(float z) const { return scale * soft_cap.slope(z); }
};

/// Applied to logits, in place.
template <class T>
struct ShapeLogits {
  ShapedLogits form;
  T* x;

  template <int N>
  SHERD_HOST_DEVICE void apply(std::int64_t first) const {
    float value[N];
    load_wide<N>(x + first, value);
    for (int i = 0; i < N; ++i) value[i] = form.shape(value[i]);
    store_narrow<N>(x + first, value);
  }
};

}  // namespace sherd::kernels::device_common
