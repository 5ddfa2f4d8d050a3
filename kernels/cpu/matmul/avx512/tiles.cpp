// Float tiles on AVX-512. Compiled with -mavx512f (the top CMakeLists.txt).
#include "kernels/cpu/matmul/tile.h"

#ifdef __AVX512F__
#include "kernels/cpu/matmul/avx512/tile_body.h"

namespace sherd::kernels::cpu {
namespace {

using Bits16 = std::uint32_t __attribute__((vector_size(64)));

struct MultiplyAdd {
  static constexpr Units kUnits = Units::kFloats;
  static __m512 add(__m512 sum, __m512 a, __m512 b) { return _mm512_fmadd_ps(a, b, sum); }
  // As bits_rounded_to_bf16 (kernels/cpu/vectors.h), on GCC's vectors: it warns of its header's
  // shifts (bug 105593).
  static __m256i rounded(__m512 x) {
    const auto bits = (Bits16)x;
    const Bits16 upper = bits >> 16, nearest = (bits + 0x7fffu + (upper & 1u)) >> 16;
    const Bits16 any = x != x ? upper | 0x40u : nearest;
    return _mm512_maskz_cvtepi32_epi16(0xffff, (__m512i)any);
  }
};

}  // namespace

const TileKernels* avx512_float_tiles() {
  return &kTilesOf<MultiplyAdd>;
}

}  // namespace sherd::kernels::cpu
#else

namespace sherd::kernels::cpu {

const TileKernels* avx512_float_tiles() {
  return nullptr;
}

}  // namespace sherd::kernels::cpu
#endif
