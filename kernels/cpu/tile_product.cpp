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

// `kPacked`: a lies in a panel, so that its steps are known when this is compiled.
template <int kRows, bool kPacked>
void multiply_rows(const TileProduct& tile) {
  Float8 sum[kRows][2] = {};
  const float *a = tile.a, *b = tile.b;
  const std::int64_t a_row = kPacked ? 1 : tile.a_row;
  const std::int64_t a_depth = kPacked ? kTileRows : tile.a_depth;
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
    const float* plus = tile.add ? c : tile.bias;
    const Float8 left = sum[i][0] * tile.scale, right = sum[i][1] * tile.scale;
    store8(c, plus ? load8(plus) + left : left);
    store8(c + 8, plus ? load8(plus + 8) + right : right);
  }
}

template <bool kPacked>
void multiply_full_width(const TileProduct& tile, int rows) {
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
void multiply_any_width(const TileProduct& tile, int rows, int columns) {
  if (columns == kTileColumns) return multiply_full_width<kPacked>(tile, rows);
  alignas(64) float whole[kTileRows * kTileColumns] = {};
  TileProduct aside = tile;
  aside.c = whole;
  aside.c_stride = kTileColumns;
  aside.add = tile.add || tile.bias;
  for (int i = 0; aside.add && i < rows; ++i) {
    std::copy_n(tile.add ? tile.c + i * tile.c_stride : tile.bias, columns,
                whole + i * kTileColumns);
  }
  multiply_full_width<kPacked>(aside, rows);
  for (int i = 0; i < rows; ++i) {
    std::copy_n(whole + i * kTileColumns, columns, tile.c + i * tile.c_stride);
  }
}

// Eight rows of eight floats, `stride` apart, of which only the first `kRows` are read; out[k] is
// their column k, written in order: a column's last floats may be written over by the next.
template <int kRows>
void transpose_8x8(const float* in, std::int64_t stride, float* out, std::int64_t out_stride) {
  Float8 row[8], half[8];
  for (int i = 0; i < 8; ++i) row[i] = load8(in + std::min(i, kRows - 1) * stride);
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
    store8(out + i * out_stride,
           __builtin_shufflevector(row[i], row[i + 4], 0, 1, 2, 3, 8, 9, 10, 11));
  }
  for (int i = 0; i < 4; ++i) {
    store8(out + (i + 4) * out_stride,
           __builtin_shufflevector(row[i], row[i + 4], 4, 5, 6, 7, 12, 13, 14, 15));
  }
}

// One panel of a transposed b: its `columns` rows in memory become columns.
void pack_transposed(const float* b, std::int64_t stride, std::int64_t depth, std::int64_t columns,
                     float* panel) {
  std::int64_t done = 0;
  if (columns == kTileColumns) {
    for (; done + 8 <= depth; done += 8) {
      transpose_8x8<8>(b + done, stride, panel + done * kTileColumns, kTileColumns);
      transpose_8x8<8>(b + 8 * stride + done, stride, panel + done * kTileColumns + 8,
                       kTileColumns);
    }
  }
  for (std::int64_t k = done; k < depth; ++k) {
    float* row = panel + k * kTileColumns;
    for (std::int64_t j = 0; j < columns; ++j) row[j] = b[j * stride + k];
    std::fill(row + columns, row + kTileColumns, 0.0f);
  }
}

// Lines lie far apart, so the processor doesn't see which comes next.
constexpr std::int64_t kLinesAhead = 8;
void fetch_line(const float* line, std::int64_t count) {
  for (std::int64_t i = 0; i < count; i += 16) __builtin_prefetch(line + i);
}

// One panel of an a that lies in rows; `rows` of them.
void pack_row_panel(const float* a, std::int64_t stride, std::int64_t rows, std::int64_t depth,
                    float* panel) {
  std::int64_t done = 0;
  if (rows == kTileRows) {
    for (; done + 8 <= depth; done += 8) {
      transpose_8x8<kTileRows>(a + done, stride, panel + done * kTileRows, kTileRows);
    }
  }
  for (std::int64_t k = done; k < depth; ++k) {
    for (std::int64_t i = 0; i < kTileRows; ++i) {
      panel[k * kTileRows + i] = i < rows ? a[i * stride + k] : 0.0f;
    }
  }
}

}  // namespace

void multiply_tile(const TileProduct& tile, int rows, int columns) {
  multiply_any_width<false>(tile, rows, columns);
}

void multiply_packed_tile(const TileProduct& tile, int rows, int columns) {
  multiply_any_width<true>(tile, rows, columns);
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
  const std::int64_t whole = columns / kTileColumns * kTileColumns;
  for (std::int64_t k = 0; k < depth; ++k, panels += kTileColumns) {
    const float* line = b.from_row(k).data;
    fetch_line(b.from_row(k + kLinesAhead).data, columns);
    for (std::int64_t j = 0; j < whole; j += kTileColumns) {
      store8(panels + j * depth, load8(line + j));
      store8(panels + j * depth + 8, load8(line + j + 8));
    }
    if (whole == columns) continue;
    float* last = panels + whole * depth;
    std::copy_n(line + whole, columns - whole, last);
    std::fill(last + columns - whole, last + kTileColumns, 0.0f);
  }
}

void pack_columns_of_transpose(const MatrixView& b_t, std::int64_t depth, std::int64_t columns,
                               float* panels) {
  for (std::int64_t j = 0; j < columns; j += kTileColumns, panels += depth * kTileColumns) {
    pack_transposed(b_t.data + j * b_t.stride, b_t.stride, depth,
                    std::min<std::int64_t>(kTileColumns, columns - j), panels);
  }
}

void pack_rows(const MatrixView& a, std::int64_t rows, std::int64_t depth, float* panels) {
  for (std::int64_t i = 0; i < rows; i += kTileRows, panels += depth * kTileRows) {
    pack_row_panel(a.from_row(i).data, a.stride, std::min<std::int64_t>(kTileRows, rows - i), depth,
                   panels);
  }
}

void pack_rows_of_transpose(const MatrixView& a_t, std::int64_t rows, std::int64_t depth,
                            float* panels) {
  // Line by line: a line's floats go to all panels. Eight at a time, of which the last two are
  // written over by the panel's next line; so not where there is none, and not at the end of a
  // line.
  const std::int64_t step = depth * kTileRows;
  const std::int64_t eights = rows >= 8 ? (rows - 8) / kTileRows + 1 : 0;
  for (std::int64_t k = 0; k < depth; ++k) {
    const float* line = a_t.from_row(k).data;
    fetch_line(a_t.from_row(k + kLinesAhead).data, rows);
    float* out = panels + k * kTileRows;
    std::int64_t panel = 0;
    if (k + 1 < depth) {
      for (; panel < eights; ++panel) store8(out + panel * step, load8(line + panel * kTileRows));
    }
    for (; panel * kTileRows < rows; ++panel) {
      for (std::int64_t i = 0; i < kTileRows; ++i) {
        const std::int64_t row = panel * kTileRows + i;
        out[panel * step + i] = row < rows ? line[row] : 0.0f;
      }
    }
  }
}

}  // namespace sherd::kernels::cpu
