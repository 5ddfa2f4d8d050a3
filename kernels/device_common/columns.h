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

template <class T>
struct StoreColumns {
  Columns columns;
  const float* values;
  T* y;

  template <int N>
  SHERD_HOST_DEVICE void apply(std::int64_t first) const {
    for (std::int64_t i = first; i < first + N; ++i) {
      y[columns.in_matrix(i)] = narrow<T>(values[i]);
    }
  }
};

/// T: any type of an element's size whose zero has all bits zero; likewise below.
template <class T>
struct ClearColumns {
  Columns columns;
  T* y;

  template <int N>
  SHERD_HOST_DEVICE void apply(std::int64_t first) const {
    for (std::int64_t i = first; i < first + N; ++i) y[columns.in_matrix(i)] = T{};
  }
};

template <class T>
struct MoveColumns {
  Columns from, to;
  const T* x;
  T* y;

  template <int N>
  SHERD_HOST_DEVICE void apply(std::int64_t first) const {
    for (std::int64_t i = first; i < first + N; ++i) y[to.in_matrix(i)] = x[from.in_matrix(i)];
  }
};

/// What a thread moves at a time if all columns lie on multiples of 16 bytes.
struct alignas(16) Words {
  std::uint32_t word[4];
};
/// Whether columns of `size`-byte elements begin and end on such multiples, in a matrix that does.
inline bool are_words(const Columns& columns, std::size_t size) {
  const auto whole = [&](std::int64_t elements) {
    return elements * static_cast<std::int64_t>(size) % static_cast<std::int64_t>(sizeof(Words)) ==
           0;
  };
  return whole(columns.width) && whole(columns.first) && whole(columns.count);
}
inline Columns in_words(const Columns& columns, std::size_t size) {
  const auto of_a_word = static_cast<std::int64_t>(sizeof(Words) / size);
  return {columns.rows, columns.width / of_a_word, columns.first / of_a_word,
          columns.count / of_a_word};
}

}  // namespace sherd::kernels::device_common
