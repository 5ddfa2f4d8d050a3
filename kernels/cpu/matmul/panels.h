/// Matmuls of any size on one thread, with the right matrix packed once into panels (pack.h).
/// Attention uses them for its heads.
///
/// Operands are units of a type (tile.h): floats for f32 and f16; for bf16, pairs if the
/// instruction set in use has dot products, else floats with the two of a pair swapped, with
/// bit-identical sums. AMX's tiles aren't used, since heads are too small for them. Computed left
/// matrices (the weights of attention, in f32) are rounded to bf16 if the other factor is bf16, and
/// otherwise not rounded.
#pragma once

#include <cstdint>

#include "kernels/cpu/matmul/pack.h"

namespace sherd::kernels::cpu {

/// A row-major matrix in memory, of floats or of units of 32 bits.
struct MatrixView {
  const float* data = nullptr;
  std::int64_t stride = 0;

  MatrixView from_row(std::int64_t row) const { return {data + row * stride, stride}; }
};

/// Rows of elements of the type, `stride` elements apart.
struct StoredRows {
  const void* first = nullptr;
  std::int64_t stride = 0;
};

/// All tiles of a matmul. The left matrix lies anywhere, as units; the right one in panels. The
/// depth is processed in pieces of kPanelDepth from its begin, each a separate chain, added in
/// order. So a result depends on the preceding elements in depth, not on how many follow (a causal
/// row gets bit-identical results in a longer sequence).
struct PanelMatmul {
  Tile first;                ///< the tile at row 0, column 0, with the whole depth in elements
  std::int64_t b_depth = 0;  ///< of the panels, in elements: at least that of `first`
};
inline constexpr std::int64_t kPanelDepth = 256;

/// Rounded up to whole pairs, as buffers are sized, for every type and instruction set.
inline std::int64_t whole_pairs(std::int64_t depth) {
  return (depth + 1) / 2 * 2;
}
/// The same for every type and instruction set.
inline std::int64_t panel_floats(std::int64_t depth, std::int64_t columns) {
  return (columns + kMaxTileColumns - 1) / kMaxTileColumns * kMaxTileColumns * whole_pairs(depth);
}

/// How matrices of one type are multiplied on the instruction set in use.
class Panels {
 public:
  explicit Panels(DType dtype);

  /// Columns of a panel; at most kMaxTileColumns.
  std::int64_t columns() const { return tiles_.columns; }
  /// Units of a depth.
  std::int64_t units(std::int64_t depth) const { return num_units(dtype_, tiles_.units, depth); }

  /// The right matrix b [depth, columns] into `panel_floats` of panels; an incomplete last pair is
  /// padded with zero.
  void pack(const StoredRows& b, std::int64_t depth, std::int64_t columns, float* panels) const;
  /// The same of the transpose of b_t [columns, depth].
  void pack_transpose(const StoredRows& b_t, std::int64_t depth, std::int64_t columns,
                      float* panels) const;
  /// Writes one row or one column of such panels, of `depth` rows; rows are written in order.
  void put_row(const void* values, std::int64_t row, std::int64_t depth, std::int64_t columns,
               float* panels) const;
  void put_column(const void* values, std::int64_t column, std::int64_t depth, float* panels) const;
  /// Where panels of `depth` rows hold row `k` (even), at a column that is a multiple of
  /// kMaxTileColumns.
  const float* at(const float* panels, std::int64_t depth, std::int64_t k,
                  std::int64_t column) const {
    return panels + column * units(depth) + units(k) * tiles_.columns;
  }

  /// The left matrix with its depth along the rows: in place, or as units in `copy`, [rows,
  /// whole_pairs(depth)].
  MatrixView left(const StoredRows& a, std::int64_t rows, std::int64_t depth, float* copy) const;
  /// Converts a computed row of a left matrix in place. With an odd `depth`, one float after it is
  /// written, too.
  void to_units(float* row, std::int64_t depth) const;
  /// Whether `to_units` and `turn` change anything.
  bool rounds() const { return dtype_ == DType::kBF16; }
  /// Converts two rows that are consecutive in depth, the first one even, to units for a left
  /// matrix whose depth goes down the rows: `units(2)` rows of `columns` in `out`, `stride` apart.
  /// Null rows are zeros.
  void turn(const float* even, const float* odd, std::int64_t columns, float* out,
            std::int64_t stride) const;

  void multiply(const PanelMatmul& matmul, std::int64_t rows, std::int64_t columns) const;

 private:
  DType dtype_;
  const TileKernels& tiles_;
  Packing packing_;
};

}  // namespace sherd::kernels::cpu
