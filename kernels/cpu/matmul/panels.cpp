#include "kernels/cpu/matmul/panels.h"

#include <algorithm>

#include "kernels/cpu/matmul/pack.h"

namespace sherd::kernels::cpu {
namespace {

Packing packing_of_floats() {
  return packing_of_columns(DType::kF32, float_tiles(isa()));
}

}  // namespace

void pack_columns(const MatrixView& b, std::int64_t depth, std::int64_t columns, float* panels) {
  packing_of_floats().across(b.data, b.stride, columns, depth, panels);
}

void pack_columns_of_transpose(const MatrixView& b_t, std::int64_t depth, std::int64_t columns,
                               float* panels) {
  packing_of_floats().along(b_t.data, b_t.stride, columns, depth, panels);
}

void multiply_panels(const PanelMatmul& matmul, std::int64_t rows, std::int64_t columns) {
  const TileKernels& tiles = float_tiles(isa());
  const Tile& first = matmul.first;
  for (std::int64_t k = 0; k < first.depth; k += kPanelDepth) {
    Tile tile = first;
    tile.depth = std::min(kPanelDepth, first.depth - k);
    tile.add = first.add || k > 0;
    for (std::int64_t j = 0; j < columns; j += tiles.columns) {
      const int width = static_cast<int>(std::min<std::int64_t>(tiles.columns, columns - j));
      tile.b = first.b + j * matmul.b_depth + k * tiles.columns;
      for (std::int64_t i = 0; i < rows; i += tiles.rows) {
        tile.a = first.a + i * first.a_row + k * first.a_depth;
        tile.c = first.c + i * first.c_stride + j;
        tiles.multiply(tile, static_cast<int>(std::min<std::int64_t>(tiles.rows, rows - i)), width);
      }
    }
  }
}

std::int64_t panel_columns() {
  return float_tiles(isa()).columns;
}

const float* in_panels(const float* panels, std::int64_t b_depth, std::int64_t k,
                       std::int64_t column) {
  return panels + column * b_depth + k * float_tiles(isa()).columns;
}

}  // namespace sherd::kernels::cpu
