/// Elements of kernels/columns.h, one at a time.
#pragma once

#include <cmath>

#include "kernels/columns.h"
#include "kernels/device_common/number.h"

namespace sherd::kernels::device_common {

template <class T>
struct AddToColumns {
  Columns columns;
  const T* z;
  float scale;
  T* y;

  template <int N>
  SHERD_HOST_DEVICE void apply(std::int64_t first) const {
    for (std::int64_t i = first; i < first + N; ++i) {
      T& sum = y[columns.in_matrix(i)];
      sum = narrow<T>(fmaf(scale, widen(z[i]), widen(sum)));
    }
  }
};

template <class T>
struct TakeColumns {
  Columns columns;
  const T* y;
  float scale;
  T* z;

  template <int N>
  SHERD_HOST_DEVICE void apply(std::int64_t first) const {
    for (std::int64_t i = first; i < first + N; ++i) {
      z[i] = narrow<T>(scale * widen(y[columns.in_matrix(i)]));
    }
  }
};

}  // namespace sherd::kernels::device_common
