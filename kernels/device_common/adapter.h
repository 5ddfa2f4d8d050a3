/// Elements of kernels/adapter.h, one at a time.
#pragma once

#include <cmath>

#include "kernels/adapter.h"
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
      T& sum = y[i / columns.count * columns.width + columns.first + i % columns.count];
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
      z[i] = narrow<T>(
          scale * widen(y[i / columns.count * columns.width + columns.first + i % columns.count]));
    }
  }
};

struct FillUniform {
  RandomAddress address;
  std::int64_t first_element;
  float bound;
  float* out;

  template <int N>
  SHERD_HOST_DEVICE void apply(std::int64_t first) const {
    for (std::int64_t i = first; i < first + N; ++i) {
      const auto element = static_cast<std::uint64_t>(first_element + i);
      out[i] = uniform_number(random_word(address, element), bound);
    }
  }
};

}  // namespace sherd::kernels::device_common
