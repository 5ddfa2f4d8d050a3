// Float tiles on AVX-512. Compiled with -mavx512f (the top CMakeLists.txt).
#include "kernels/cpu/matmul/tile.h"

#ifdef __AVX512F__
#include "kernels/cpu/matmul/avx512/tile_body.h"

namespace sherd::kernels::cpu {
namespace {

struct MultiplyAdd {
  static constexpr Units kUnits = Units::kFloats;
  static __m512 add(__m512 sum, __m512 a, __m512 b) { return _mm512_fmadd_ps(a, b, sum); }
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
