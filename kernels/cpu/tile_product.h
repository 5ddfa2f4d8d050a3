/// The innermost product: a tile of C, at most 6 x 16, kept in registers while the depth goes by.
///
///   c[i,j] = scale * sum_k a[i,k] b[k,j]  (+ c[i,j])     0 <= i < rows <= 6, 0 <= j < columns <=
///   16
///
/// Twelve accumulators of eight floats, two vectors of b and one of a fill AVX2's sixteen
/// registers; six rows give every load of b six multiply-adds (Goto & van de Geijn 2008; Van Zee &
/// van de Geijn 2015). A row of b must be readable over 16 floats even where columns < 16.
///
/// Bits   c[i,j] is one chain of fused multiply-adds over k, in order, wherever the tile lies.
#pragma once

#include <cstdint>

namespace sherd::kernels::cpu {

inline constexpr int kTileRows = 6;
inline constexpr int kTileColumns = 16;

struct TileProduct {
  std::int64_t depth = 0;
  const float* a = nullptr;  ///< a[i,k] at a[i * a_row + k * a_depth]
  std::int64_t a_row = 0, a_depth = 1;
  const float* b = nullptr;  ///< b[k,j] at b[16 k + j]
  float* c = nullptr;
  std::int64_t c_stride = 0;
  float scale = 1.0f;
  bool add = false;
  const float* bias = nullptr;  ///< added to every row; not together with `add`
};
void multiply_tile(const TileProduct& tile, int rows, int columns);
/// The same with a in a panel, a[i,k] at a[6 k + i], of which all 6 rows can be read.
void multiply_packed_tile(const TileProduct& tile, int rows, int columns);

/// All tiles of a product of any size. b lies in panels: columns [16 p, 16 p + 16) as [depth][16],
/// zero beyond the last column. The depth is walked in pieces of kDepth, each a chain of its own.
struct PanelProduct {
  TileProduct first;         ///< the tile at row 0, column 0, with the whole depth
  std::int64_t b_panel = 0;  ///< from one panel to the next: 16 * depth, or more
};
inline constexpr std::int64_t kDepth = 256;
void multiply_panels(const PanelProduct& product, std::int64_t rows, std::int64_t columns);

/// A row-major matrix in memory.
struct MatrixView {
  const float* data = nullptr;
  std::int64_t stride = 0;

  MatrixView from_row(std::int64_t row) const { return {data + row * stride, stride}; }
};

/// b [depth, columns] into panels, one after another: `panel_floats` of them.
void pack_columns(const MatrixView& b, std::int64_t depth, std::int64_t columns, float* panels);
/// The same of the transpose of b_t [columns, depth].
void pack_columns_of_transpose(const MatrixView& b_t, std::int64_t depth, std::int64_t columns,
                               float* panels);

/// a [rows, depth] into panels of 6 rows as [depth][6], one after another; beyond the last row
/// stands nothing of use. Up to 2 floats after the last panel are written.
void pack_rows(const MatrixView& a, std::int64_t rows, std::int64_t depth, float* panels);
/// The same of the transpose of a_t [depth, rows].
void pack_rows_of_transpose(const MatrixView& a_t, std::int64_t rows, std::int64_t depth,
                            float* panels);

inline std::int64_t panel_floats(std::int64_t depth, std::int64_t columns) {
  return (columns + kTileColumns - 1) / kTileColumns * kTileColumns * depth;
}

}  // namespace sherd::kernels::cpu
