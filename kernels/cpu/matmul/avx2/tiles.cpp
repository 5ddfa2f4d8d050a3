// 6 x 16: twelve accumulators of eight floats, two vectors of b and one of a fill AVX2's sixteen
// registers; six rows give every load of b six multiply-adds (Goto & van de Geijn 2008; Van Zee &
// van de Geijn 2015). Compiled as the rest of the program, so that it runs on any processor.
#include <algorithm>
#include <cmath>
#include <cstring>

#include "kernels/cpu/lane_sum.h"
#include "kernels/cpu/matmul/tile.h"

namespace sherd::kernels::cpu {
namespace {

constexpr int kRows = 6, kColumns = 16;

void store8(float* x, Float8 value) {
  std::memcpy(x, &value, sizeof value);
}

// `kPacked`: a lies in a panel, so that its steps are known when this is compiled.
template <int kNumRows, bool kPacked>
void multiply_rows(const Tile& tile) {
  Float8 sum[kNumRows][2] = {};
  const float *a = tile.a, *b = tile.b;
  const std::int64_t a_row = kPacked ? 1 : tile.a_row;
  const std::int64_t a_depth = kPacked ? kRows : tile.a_depth;
  for (int i = 0; i < kNumRows; ++i) __builtin_prefetch(tile.c + i * tile.c_stride, 1);
  for (int i = 0; i < kNumRows; ++i) __builtin_prefetch(tile.c + i * tile.c_stride + 15, 1);
  const float* fetch = tile.fetch ? tile.fetch : b;
  for (std::int64_t k = tile.depth; k > 0; --k, a += a_depth, b += kColumns, fetch += 16) {
    __builtin_prefetch(fetch, 0, 2);
    const Float8 left = load8(b), right = load8(b + 8);
#pragma GCC unroll 6
    for (int i = 0; i < kNumRows; ++i) {
      const Float8 x = a[i * a_row] - Float8{};
      sum[i][0] = multiply_add(x, left, sum[i][0]);
      sum[i][1] = multiply_add(x, right, sum[i][1]);
    }
  }
#pragma GCC unroll 6
  for (int i = 0; i < kNumRows; ++i) {
    float* c = tile.c + i * tile.c_stride;
    const float* plus = tile.add ? c : tile.bias;
    const Float8 left = sum[i][0] * tile.scale, right = sum[i][1] * tile.scale;
    store8(c, plus ? load8(plus) + left : left);
    store8(c + 8, plus ? load8(plus + 8) + right : right);
  }
}

template <bool kPacked>
void multiply_full_width(const Tile& tile, int rows) {
  switch (rows) {
    case 6:
      return multiply_rows<6, kPacked>(tile);
    case 5:
      return multiply_rows<5, kPacked>(tile);
    case 4:
      return multiply_rows<4, kPacked>(tile);
    case 3:
      return multiply_rows<3, kPacked>(tile);
    case 2:
      return multiply_rows<2, kPacked>(tile);
    default:
      return multiply_rows<1, kPacked>(tile);
  }
}

template <bool kPacked>
void multiply_any_width(const Tile& tile, int rows, int columns) {
  if (columns == kColumns) return multiply_full_width<kPacked>(tile, rows);
  alignas(64) float whole[kRows * kColumns] = {};
  Tile aside = tile;
  aside.c = whole;
  aside.c_stride = kColumns;
  aside.add = tile.add || tile.bias;
  for (int i = 0; aside.add && i < rows; ++i) {
    std::copy_n(tile.add ? tile.c + i * tile.c_stride : tile.bias, columns, whole + i * kColumns);
  }
  multiply_full_width<kPacked>(aside, rows);
  for (int i = 0; i < rows; ++i) {
    std::copy_n(whole + i * kColumns, columns, tile.c + i * tile.c_stride);
  }
}

constexpr TileKernels kTiles{.rows = kRows,
                             .columns = kColumns,
                             .units = Units::kFloats,
                             .multiply = multiply_any_width<false>,
                             .multiply_packed = multiply_any_width<true>};

}  // namespace

const TileKernels* avx2_float_tiles() {
  return &kTiles;
}

}  // namespace sherd::kernels::cpu
