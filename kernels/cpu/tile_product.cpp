#include "kernels/cpu/tile_product.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "kernels/cpu/lane_sum.h"

#ifdef __FMA__
#include <immintrin.h>
#endif

namespace sherd::kernels::cpu {
namespace {

#ifdef __FMA__
Float8 multiply_add(Float8 x, Float8 y, Float8 z) {
  return _mm256_fmadd_ps(x, y, z);
}
#else
Float8 multiply_add(Float8 x, Float8 y, Float8 z) {
  for (int i = 0; i < 8; ++i) z[i] = std::fma(x[i], y[i], z[i]);
  return z;
}
#endif

void store8(float* x, Float8 value) {
  std::memcpy(x, &value, sizeof value);
}

template <int kRows>
void multiply_rows(const TileProduct& tile) {
  Float8 sum[kRows][2] = {};
  const float *a = tile.a, *b = tile.b;
  const std::int64_t a_row = tile.a_row, a_depth = tile.a_depth;
  for (int i = 0; i < kRows; ++i) __builtin_prefetch(tile.c + i * tile.c_stride, 1);
  for (int i = 0; i < kRows; ++i) __builtin_prefetch(tile.c + i * tile.c_stride + 15, 1);
  for (std::int64_t k = tile.depth; k > 0; --k, a += a_depth, b += kTileColumns) {
    const Float8 left = load8(b), right = load8(b + 8);
#pragma GCC unroll 6
    for (int i = 0; i < kRows; ++i) {
      const Float8 x = a[i * a_row] - Float8{};
      sum[i][0] = multiply_add(x, left, sum[i][0]);
      sum[i][1] = multiply_add(x, right, sum[i][1]);
    }
  }
#pragma GCC unroll 6
  for (int i = 0; i < kRows; ++i) {
    float* c = tile.c + i * tile.c_stride;
    const Float8 left = sum[i][0] * tile.scale, right = sum[i][1] * tile.scale;
    store8(c, tile.add ? load8(c) + left : left);
    store8(c + 8, tile.add ? load8(c + 8) + right : right);
  }
}

void multiply_full_width(const TileProduct& tile, int rows) {
  switch (rows) {
    case 6:
      return multiply_rows<6>(tile);
    case 5:
      return multiply_rows<5>(tile);
    case 4:
      return multiply_rows<4>(tile);
    case 3:
      return multiply_rows<3>(tile);
    case 2:
      return multiply_rows<2>(tile);
    default:
      return multiply_rows<1>(tile);
  }
}

// The transpose of eight rows of eight floats, `stride` apart, into rows of a panel.
void transpose_8x8(const float* in, std::int64_t stride, float* panel) {
  Float8 row[8], half[8];
  for (int i = 0; i < 8; ++i) row[i] = load8(in + i * stride);
  for (int i = 0; i < 4; ++i) {
    half[2 * i] = __builtin_shufflevector(row[2 * i], row[2 * i + 1], 0, 8, 2, 10, 4, 12, 6, 14);
    half[2 * i + 1] =
        __builtin_shufflevector(row[2 * i], row[2 * i + 1], 1, 9, 3, 11, 5, 13, 7, 15);
  }
  for (int i = 0; i < 2; ++i) {
    for (int j = 0; j < 2; ++j) {
      const Float8 x = half[4 * i + j], y = half[4 * i + 2 + j];
      row[4 * i + j] = __builtin_shufflevector(x, y, 0, 1, 8, 9, 4, 5, 12, 13);
      row[4 * i + 2 + j] = __builtin_shufflevector(x, y, 2, 3, 10, 11, 6, 7, 14, 15);
    }
  }
  for (int i = 0; i < 4; ++i) {
    store8(panel + i * kTileColumns,
           __builtin_shufflevector(row[i], row[i + 4], 0, 1, 2, 3, 8, 9, 10, 11));
    store8(panel + (i + 4) * kTileColumns,
           __builtin_shufflevector(row[i], row[i + 4], 4, 5, 6, 7, 12, 13, 14, 15));
  }
}

// One panel of a transposed b: its `columns` rows in memory become columns.
void pack_transposed(const float* b, std::int64_t stride, std::int64_t depth, std::int64_t columns,
                     float* panel) {
  std::int64_t done = 0;
  if (columns == kTileColumns) {
    for (; done + 8 <= depth; done += 8) {
      transpose_8x8(b + done, stride, panel + done * kTileColumns);
      transpose_8x8(b + 8 * stride + done, stride, panel + done * kTileColumns + 8);
    }
  }
  for (std::int64_t k = done; k < depth; ++k) {
    float* row = panel + k * kTileColumns;
    for (std::int64_t j = 0; j < columns; ++j) row[j] = b[j * stride + k];
    std::fill(row + columns, row + kTileColumns, 0.0f);
  }
}

// One panel of a b that lies in rows.
void pack_lines(const float* b, std::int64_t stride, std::int64_t depth, std::int64_t columns,
                float* panel) {
  for (std::int64_t k = 0; k < depth; ++k, b += stride, panel += kTileColumns) {
    if (columns == kTileColumns) {
      std::memcpy(panel, b, kTileColumns * sizeof(float));
    } else {
      std::copy_n(b, columns, panel);
      std::fill(panel + columns, panel + kTileColumns, 0.0f);
    }
  }
}

}  // namespace

void multiply_tile(const TileProduct& tile, int rows, int columns) {
  if (columns == kTileColumns) return multiply_full_width(tile, rows);
  alignas(64) float whole[kTileRows * kTileColumns];
  TileProduct aside = tile;
  aside.c = whole;
  aside.c_stride = kTileColumns;
  if (tile.add) {
    for (int i = 0; i < rows; ++i) {
      std::copy_n(tile.c + i * tile.c_stride, columns, whole + i * kTileColumns);
      std::fill(whole + i * kTileColumns + columns, whole + (i + 1) * kTileColumns, 0.0f);
    }
  }
  multiply_full_width(aside, rows);
  for (int i = 0; i < rows; ++i) {
    std::copy_n(whole + i * kTileColumns, columns, tile.c + i * tile.c_stride);
  }
}

void multiply_panels(const PanelProduct& product, std::int64_t rows, std::int64_t columns) {
  const TileProduct& first = product.first;
  for (std::int64_t k = 0; k < first.depth; k += kDepth) {
    TileProduct tile = first;
    tile.depth = std::min(kDepth, first.depth - k);
    tile.add = first.add || k > 0;
    for (std::int64_t j = 0; j < columns; j += kTileColumns) {
      const int width = static_cast<int>(std::min<std::int64_t>(kTileColumns, columns - j));
      tile.b = first.b + j / kTileColumns * product.b_panel + k * kTileColumns;
      for (std::int64_t i = 0; i < rows; i += kTileRows) {
        tile.a = first.a + i * first.a_row + k * first.a_depth;
        tile.c = first.c + i * first.c_stride + j;
        multiply_tile(tile, static_cast<int>(std::min<std::int64_t>(kTileRows, rows - i)), width);
      }
    }
  }
}

void pack_columns(const MatrixView& b, std::int64_t depth, std::int64_t columns, float* panels) {
  for (std::int64_t j = 0; j < columns; j += kTileColumns, panels += depth * kTileColumns) {
    pack_lines(b.data + j, b.stride, depth, std::min<std::int64_t>(kTileColumns, columns - j),
               panels);
  }
}

void pack_columns_of_transpose(const MatrixView& b_t, std::int64_t depth, std::int64_t columns,
                               float* panels) {
  for (std::int64_t j = 0; j < columns; j += kTileColumns, panels += depth * kTileColumns) {
    pack_transposed(b_t.data + j * b_t.stride, b_t.stride, depth,
                    std::min<std::int64_t>(kTileColumns, columns - j), panels);
  }
}

}  // namespace sherd::kernels::cpu
