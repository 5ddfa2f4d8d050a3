// 12 x 32 in 512-bit vectors: 24 accumulators, two vectors of b and one of a in 32 registers.
// Included by the files of avx512/ and avx512_bf16/, each with its own `Dot`.
//
// These files are compiled for processors that not every machine has. Their includes must not emit
// code that others share (inline functions, templates of the standard library), since the linker
// keeps one copy for all. So they include only <immintrin.h>, and everything else is static.
#pragma once

#include <immintrin.h>

#include "kernels/cpu/matmul/tile.h"

namespace sherd::kernels::cpu {
namespace {

constexpr int kRows = 12, kColumns = 32;

// AVX-512F has no masked store of 16 bits.
template <class Dot>
void put_rounded(__m512 x, __mmask16 columns, BFloat16* out) {
  const __m256i bits = Dot::rounded(x);
  if (columns == 0xffffu) return _mm256_storeu_si256(reinterpret_cast<__m256i*>(out), bits);
  alignas(32) std::uint16_t element[16];
  _mm256_store_si256(reinterpret_cast<__m256i*>(element), bits);
  for (int i = 0; i < 16; ++i) {
    if (columns >> i & 1) out[i].bits = element[i];
  }
}

template <class Dot, int kNumRows, bool kPacked>
void multiply_rows(const Tile& tile, __mmask16 left_columns, __mmask16 right_columns) {
  __m512 sum[kNumRows][2];
#pragma GCC unroll 12
  for (int i = 0; i < kNumRows; ++i) sum[i][0] = sum[i][1] = _mm512_setzero_ps();
  const float *a = tile.a, *b = tile.b;
  const std::int64_t a_row = kPacked ? 1 : tile.a_row;
  const std::int64_t a_depth = kPacked ? kRows : tile.a_depth;
  for (int i = 0; i < kNumRows; ++i) {
    __builtin_prefetch(tile.c + i * tile.c_stride, 1);
    __builtin_prefetch(tile.c + i * tile.c_stride + 16, 1);
    if (tile.rounded) __builtin_prefetch(tile.rounded + i * tile.rounded_stride, 1);
  }
  const float* fetch = tile.fetch ? tile.fetch : b;
  for (std::int64_t k = tile.depth; k > 0; --k, a += a_depth, b += kColumns, fetch += 16) {
    _mm_prefetch(reinterpret_cast<const char*>(fetch), _MM_HINT_T1);
    const __m512 left = _mm512_loadu_ps(b), right = _mm512_loadu_ps(b + 16);
#pragma GCC unroll 12
    for (int i = 0; i < kNumRows; ++i) {
      const __m512 x = _mm512_set1_ps(a[i * a_row]);
      sum[i][0] = Dot::add(sum[i][0], x, left);
      sum[i][1] = Dot::add(sum[i][1], x, right);
    }
  }
  const __m512 scale = _mm512_set1_ps(tile.scale);
#pragma GCC unroll 12
  for (int i = 0; i < kNumRows; ++i) {
    float* c = tile.c + i * tile.c_stride;
    const float* plus = tile.add ? c : tile.bias;
    __m512 left = _mm512_mul_ps(sum[i][0], scale), right = _mm512_mul_ps(sum[i][1], scale);
    if (plus) {
      left = _mm512_add_ps(_mm512_maskz_loadu_ps(left_columns, plus), left);
      right = _mm512_add_ps(_mm512_maskz_loadu_ps(right_columns, plus + 16), right);
    }
    if (tile.rounded) {
      put_rounded<Dot>(left, left_columns, tile.rounded + i * tile.rounded_stride);
      put_rounded<Dot>(right, right_columns, tile.rounded + i * tile.rounded_stride + 16);
      continue;
    }
    _mm512_mask_storeu_ps(c, left_columns, left);
    _mm512_mask_storeu_ps(c + 16, right_columns, right);
  }
}

template <class Dot, bool kPacked>
void multiply_tile(const Tile& tile, int rows, int columns) {
  using Rows = void (*)(const Tile&, __mmask16, __mmask16);
  static constexpr Rows kByRows[kRows] = {
      multiply_rows<Dot, 1, kPacked>,  multiply_rows<Dot, 2, kPacked>,
      multiply_rows<Dot, 3, kPacked>,  multiply_rows<Dot, 4, kPacked>,
      multiply_rows<Dot, 5, kPacked>,  multiply_rows<Dot, 6, kPacked>,
      multiply_rows<Dot, 7, kPacked>,  multiply_rows<Dot, 8, kPacked>,
      multiply_rows<Dot, 9, kPacked>,  multiply_rows<Dot, 10, kPacked>,
      multiply_rows<Dot, 11, kPacked>, multiply_rows<Dot, 12, kPacked>};
  const std::uint32_t mask = columns == kColumns ? 0xffffffffu : (1u << columns) - 1u;
  kByRows[rows - 1](tile, static_cast<__mmask16>(mask & 0xffffu),
                    static_cast<__mmask16>(mask >> 16));
}

template <class Dot>
constexpr TileKernels kTilesOf{.rows = kRows,
                               .columns = kColumns,
                               .units = Dot::kUnits,
                               .can_round = true,
                               .multiply = multiply_tile<Dot, false>,
                               .multiply_packed = multiply_tile<Dot, true>};

}  // namespace
}  // namespace sherd::kernels::cpu
