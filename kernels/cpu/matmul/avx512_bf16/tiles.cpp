// Tiles of bf16 pairs on AVX-512 BF16. Compiled with -mavx512bf16 (the top CMakeLists.txt).
#include "kernels/cpu/matmul/tile.h"

#ifdef __AVX512BF16__
#include "kernels/cpu/matmul/avx512/tile_body.h"

namespace sherd::kernels::cpu {
namespace {

struct DotOfPairs {
  static constexpr Units kUnits = Units::kPairs;
  static __m512 add(__m512 sum, __m512 a, __m512 b) {
    return _mm512_dpbf16_ps(sum, (__m512bh)a, (__m512bh)b);
  }
  // Takes subnormals for zero: sums of pairs are none.
  static __m256i rounded(__m512 x) { return (__m256i)_mm512_cvtneps_pbh(x); }
};

}  // namespace

const TileKernels* avx512_bf16_pair_tiles() {
  return &kTilesOf<DotOfPairs>;
}

}  // namespace sherd::kernels::cpu
#else

namespace sherd::kernels::cpu {

const TileKernels* avx512_bf16_pair_tiles() {
  return nullptr;
}

}  // namespace sherd::kernels::cpu
#endif
