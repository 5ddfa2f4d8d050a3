/// Packs matrices into panels, the layout that tiles (tile.h) read.
///
/// A panel is `width` rows of the left matrix or columns of the right one, as [units][width]: unit
/// by unit of the depth. A unit has 32 bits:
///
///   f32, f16      a float                                     units = depth
///   bf16          floats, the two of a pair swapped           units = depth, made even
///   bf16 pairs    two bf16, the even one in the lower half    units = half of that
///   bf16 tiles    the same; units made a multiple of 16       units = half of the depth, and more
///
/// For tiles, the left matrix is stored in groups of 16 units, as [units / 16][32][16]. Beyond the
/// depth, panels are padded with zeros. The swapped order makes a chain of fused multiply-adds add
/// like a dot product of pairs: odd, even (tile.h). Elements beyond the last row or column of the
/// last panel are undefined but may be read.
#pragma once

#include <cstdint>

#include "core/dtype.h"
#include "kernels/cpu/matmul/tile.h"

namespace sherd::kernels::cpu {

/// `first` is the matrix's first element, `stride` elements lie between its lines in memory, and
/// `count` rows or columns are packed. With width 6 up to 2 floats after the last panel are
/// written.
using Pack = void (*)(const void* first, std::int64_t stride, std::int64_t count,
                      std::int64_t depth, float* panels);
struct Packing {
  Pack along;   ///< a line in memory lies along the depth
  Pack across;  ///< a line in memory holds everything at one depth
  /// Columns only: a multiple of 32 lines, interleaved by sixteen, `stride` elements each
  /// (kernels/interleaved.h). `first` is the first line's unit at the depth where the piece begins.
  Pack interleaved = nullptr;
};
Packing packing_of_rows(DType dtype, const TileKernels& tiles);
Packing packing_of_columns(DType dtype, const TileKernels& tiles);

inline std::int64_t num_units(DType dtype, Units units, std::int64_t depth) {
  const std::int64_t pairs = (depth + 1) / 2;
  if (units == Units::kTiles) return (pairs + 15) / 16 * 16;
  return dtype != DType::kBF16 ? depth : units == Units::kPairs ? pairs : 2 * pairs;
}

}  // namespace sherd::kernels::cpu
