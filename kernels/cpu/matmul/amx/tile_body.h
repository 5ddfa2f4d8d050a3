// A 32 x 32 tile of C from four of AMX's 16 x 16 ones, on bf16 packed as Units::kTiles (panels.h).
//
// `Ops` is a set of operations on eight tiles: 0 to 3 are the sums (upper left and right, lower
// left and right), 4 and 5 rows of a, 6 and 7 columns of b. tiles.cpp implements it with
// instructions, the tests with a model from Intel's pseudocode, so this loop and its packing are
// tested on any processor.
#pragma once

#include "kernels/cpu/matmul/tile.h"

namespace sherd::kernels::cpu {
namespace {

constexpr int kAmxRows = 32, kAmxColumns = 32;
constexpr int kAmxDepth = 16;  // units of one tile

template <class Ops>
void multiply_amx_tile(const Tile& tile, int rows, int columns) {
  alignas(64) float sums[kAmxRows * kAmxColumns];
  Ops::zero_sums();
  const float *a = tile.a, *b = tile.b;
  for (std::int64_t u = 0; u < tile.depth; u += kAmxDepth) {
    Ops::load_rows(a, kAmxDepth);
    Ops::load_columns(b, kAmxColumns);
    Ops::add_dots();
    a += kAmxRows * kAmxDepth;
    b += kAmxDepth * kAmxColumns;
  }
  Ops::store_sums(sums, kAmxColumns);
  for (int i = 0; i < rows; ++i) {
    const float* sum = sums + i * kAmxColumns;
    float* c = tile.c + i * tile.c_stride;
    const float* plus = tile.add ? c : tile.bias;
    if (plus) {
#pragma omp simd
      for (int j = 0; j < columns; ++j) c[j] = plus[j] + sum[j] * tile.scale;
    } else {
#pragma omp simd
      for (int j = 0; j < columns; ++j) c[j] = sum[j] * tile.scale;
    }
  }
}

}  // namespace
}  // namespace sherd::kernels::cpu
