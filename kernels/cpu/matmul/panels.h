/// Float matmuls of any size on one thread, the right matrix packed once into panels (pack.h): what
/// attention multiplies its heads with.
#pragma once

#include <cstdint>

#include "kernels/cpu/matmul/tile.h"

namespace sherd::kernels::cpu {

/// A row-major matrix of floats in memory.
struct MatrixView {
  const float* data = nullptr;
  std::int64_t stride = 0;

  MatrixView from_row(std::int64_t row) const { return {data + row * stride, stride}; }
};

/// b [depth, columns] into panels for `multiply_panels`, `panel_floats` of them.
void pack_columns(const MatrixView& b, std::int64_t depth, std::int64_t columns, float* panels);
/// The same of the transpose of b_t [columns, depth].
void pack_columns_of_transpose(const MatrixView& b_t, std::int64_t depth, std::int64_t columns,
                               float* panels);

/// All tiles of a float matmul of any size, on the instruction set in use. The left matrix lies
/// anywhere, the right one in panels. The depth is walked in pieces of kPanelDepth from its begin,
/// each a chain of its own, added in order: what stands before an element in depth decides its
/// bits, not how much follows (a causal row has the same bits in a longer sequence).
struct PanelMatmul {
  Tile first;                ///< the tile at row 0, column 0, with the whole depth
  std::int64_t b_depth = 0;  ///< of the panels: at least that of `first`
};
inline constexpr std::int64_t kPanelDepth = 256;
void multiply_panels(const PanelMatmul& matmul, std::int64_t rows, std::int64_t columns);

/// Columns of a panel on the instruction set in use; at most kMaxTileColumns.
std::int64_t panel_columns();

/// Where `multiply_panels` finds the row `k` and the column `column` (a multiple of
/// kMaxTileColumns) of panels.
const float* in_panels(const float* panels, std::int64_t b_depth, std::int64_t k,
                       std::int64_t column);

/// The same for every instruction set.
inline std::int64_t panel_floats(std::int64_t depth, std::int64_t columns) {
  return (columns + kMaxTileColumns - 1) / kMaxTileColumns * kMaxTileColumns * depth;
}

}  // namespace sherd::kernels::cpu
