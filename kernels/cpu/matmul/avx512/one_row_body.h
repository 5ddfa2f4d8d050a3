// Sixteen columns of one row's matmul (kernels/cpu/matmul/one_row_columns.h) on 512-bit vectors,
// for any kind of unit. Compiled with -mavx512f at least.
#pragma once

#include <immintrin.h>

#include "kernels/cpu/matmul/one_row_columns.h"
#include "kernels/cpu/vectors.h"

namespace sherd::kernels::cpu {
namespace {

constexpr int kUnitsOfLine = 16;

// GCC's own vectors, because GCC warns about its own shuffle intrinsics (bug 105593).
using Units16 = std::uint32_t __attribute__((vector_size(64)));

// Interleaves the units of two columns, then pairs of these; then quarters.
Units16 low_units(Units16 x, Units16 y) {
  return __builtin_shufflevector(x, y, 0, 16, 1, 17, 4, 20, 5, 21, 8, 24, 9, 25, 12, 28, 13, 29);
}
Units16 high_units(Units16 x, Units16 y) {
  return __builtin_shufflevector(x, y, 2, 18, 3, 19, 6, 22, 7, 23, 10, 26, 11, 27, 14, 30, 15, 31);
}
Units16 low_pairs(Units16 x, Units16 y) {
  return __builtin_shufflevector(x, y, 0, 1, 16, 17, 4, 5, 20, 21, 8, 9, 24, 25, 12, 13, 28, 29);
}
Units16 high_pairs(Units16 x, Units16 y) {
  return __builtin_shufflevector(x, y, 2, 3, 18, 19, 6, 7, 22, 23, 10, 11, 26, 27, 14, 15, 30, 31);
}
Units16 even_quarters(Units16 x, Units16 y) {
  return __builtin_shufflevector(x, y, 0, 1, 2, 3, 8, 9, 10, 11, 16, 17, 18, 19, 24, 25, 26, 27);
}
Units16 odd_quarters(Units16 x, Units16 y) {
  return __builtin_shufflevector(x, y, 4, 5, 6, 7, 12, 13, 14, 15, 20, 21, 22, 23, 28, 29, 30, 31);
}

// Sixteen columns of sixteen units become sixteen units of sixteen columns.
void transpose(Units16* x) {
  Units16 y[kUnitsOfLine];
  for (int i = 0; i < 16; i += 2) {
    y[i] = low_units(x[i], x[i + 1]);
    y[i + 1] = high_units(x[i], x[i + 1]);
  }
  for (int i = 0; i < 16; i += 4) {
    x[i] = low_pairs(y[i], y[i + 2]);
    x[i + 1] = high_pairs(y[i], y[i + 2]);
    x[i + 2] = low_pairs(y[i + 1], y[i + 3]);
    x[i + 3] = high_pairs(y[i + 1], y[i + 3]);
  }
  for (int i = 0; i < 4; ++i) {
    for (int half = 0; half < 16; half += 8) {
      y[half + i] = even_quarters(x[half + i], x[half + i + 4]);
      y[half + i + 4] = odd_quarters(x[half + i], x[half + i + 4]);
    }
  }
  for (int i = 0; i < 8; ++i) {
    x[i] = even_quarters(y[i], y[i + 8]);
    x[i + 8] = odd_quarters(y[i], y[i + 8]);
  }
}

// Whole cache lines of the columns, one line of each at a time: `add(sum, unit of a, that unit of
// each column)`, in unit order.
template <class T, class Add>
__m512 add_whole_lines(const ColumnsOfOneRow<T>& p, const Add& add) {
  constexpr std::int64_t kLine = ColumnsOfOneRow<T>::kPerLine;
  __m512 sum = _mm512_setzero_ps();
  p.fetch_first();
  const float* a = p.a;
  for (std::int64_t k = 0; k + kLine <= p.depth; k += kLine, a += kUnitsOfLine) {
    p.fetch_next(k);
    Units16 unit[kUnitsOfLine];
    for (int i = 0; i < 16; ++i) unit[i] = load<Units16>(p.column[i] + k);
    transpose(unit);
    for (int i = 0; i < kUnitsOfLine; ++i) sum = add(sum, a[i], unit[i]);
  }
  return sum;
}

template <class Add>
void add_interleaved_columns(const InterleavedColumns& p, const Add& add, float* sums) {
  __m512 sum = _mm512_setzero_ps();
  p.for_each_unit([&](std::int64_t u, const std::uint32_t* words) {
    sum = add(sum, p.a[u], load<Units16>(words));
  });
  _mm512_storeu_ps(sums, sum);
}

}  // namespace
}  // namespace sherd::kernels::cpu
