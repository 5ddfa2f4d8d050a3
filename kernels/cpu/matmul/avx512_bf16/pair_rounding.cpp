#include "kernels/cpu/matmul/pair_rounding.h"

#ifdef __AVX512BF16__
#include <immintrin.h>

namespace sherd::kernels::cpu {
namespace {

// The first `count` of 16, at most all, at least none.
__mmask16 first_of(std::int64_t count) {
  return static_cast<__mmask16>(count >= 16 ? 0xffff : count > 0 ? (1 << count) - 1 : 0);
}

void pack(float* row, std::int64_t depth) {
  for (std::int64_t k = 0; k < depth; k += 32) {
    const __m512 low = _mm512_maskz_loadu_ps(first_of(depth - k), row + k);
    const __m512 high = _mm512_maskz_loadu_ps(first_of(depth - k - 16), row + k + 16);
    const auto pairs = (__m512i)_mm512_cvtne2ps_pbh(high, low);
    _mm512_mask_storeu_epi32(row + k / 2, first_of((depth - k) / 2), pairs);
  }
}

__m512i bits_of(const float* row, std::int64_t j, __mmask16 columns) {
  if (row == nullptr) return _mm512_setzero_si512();
  const __m512 values = _mm512_maskz_loadu_ps(columns, row + j);
  return _mm512_maskz_cvtepu16_epi32(0xffff, (__m256i)_mm512_cvtneps_pbh(values));
}

void turn(const float* even, const float* odd, std::int64_t columns, float* out) {
  for (std::int64_t j = 0; j < columns; j += 16) {
    const __mmask16 there = first_of(columns - j);
    const __m512i upper = _mm512_maskz_slli_epi32(0xffff, bits_of(odd, j, there), 16);
    _mm512_mask_storeu_epi32(out + j, there, _mm512_or_si512(bits_of(even, j, there), upper));
  }
}

constexpr PairRounding kRounding{pack, turn};

}  // namespace

const PairRounding* avx512_bf16_rounding() {
  return &kRounding;
}

}  // namespace sherd::kernels::cpu
#else

namespace sherd::kernels::cpu {

const PairRounding* avx512_bf16_rounding() {
  return nullptr;
}

}  // namespace sherd::kernels::cpu
#endif
