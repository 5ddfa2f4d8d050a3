// Tiles of bf16 on AMX. Compiled with -mamx-tile -mamx-bf16 (the top CMakeLists.txt); what
// avx512/tile_body.h says of such files holds here.
#include "kernels/cpu/matmul/tile.h"

#ifdef __AMX_BF16__
#include <immintrin.h>

#include "kernels/cpu/matmul/amx/tile_body.h"

namespace sherd::kernels::cpu {
namespace {

struct Instructions {
  static void zero_sums() {
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
  }
  static void load_rows(const float* a, int stride) {
    _tile_loadd(4, a, stride * 4);
    _tile_loadd(5, a + 16 * stride, stride * 4);
  }
  static void load_columns(const float* b, int stride) {
    _tile_loadd(6, b, stride * 4);
    _tile_loadd(7, b + 16, stride * 4);
  }
  static void add_dots() {
    _tile_dpbf16ps(0, 4, 6);
    _tile_dpbf16ps(1, 4, 7);
    _tile_dpbf16ps(2, 5, 6);
    _tile_dpbf16ps(3, 5, 7);
  }
  static void store_sums(float* sums, int stride) {
    _tile_stored(0, sums, stride * 4);
    _tile_stored(1, sums + 16, stride * 4);
    _tile_stored(2, sums + 16 * stride, stride * 4);
    _tile_stored(3, sums + 16 * stride + 16, stride * 4);
  }
};

// Palette 1: eight tiles of 16 rows of 64 bytes.
struct alignas(64) Configuration {
  unsigned char palette = 1, start_row = 0, reserved[14] = {};
  unsigned short bytes_of_row[16] = {64, 64, 64, 64, 64, 64, 64, 64};
  unsigned char rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
};

void begin() {
  static constexpr Configuration kConfiguration;
  _tile_loadconfig(&kConfiguration);
}
void end() {
  _tile_release();
}

constexpr TileKernels kTiles{.rows = kAmxRows,
                             .columns = kAmxColumns,
                             .units = Units::kTiles,
                             .multiply = nullptr,
                             .multiply_packed = multiply_amx_tile<Instructions>,
                             .begin = begin,
                             .end = end};

}  // namespace

const TileKernels* amx_tiles() {
  return &kTiles;
}

}  // namespace sherd::kernels::cpu
#else

namespace sherd::kernels::cpu {

const TileKernels* amx_tiles() {
  return nullptr;
}

}  // namespace sherd::kernels::cpu
#endif
