/// The innermost matmul: a small tile of C is kept in registers while looping over the depth. There
/// is one source file per instruction set, in a folder of that name.
///
///   c[i,j] = scale * sum_k a[i,k] b[k,j]  (+ c[i,j] or + bias[j])
///
/// a and b are units of 32 bits: floats, or pairs of bf16 that are adjacent in depth. A unit of
/// pairs adds its odd product, then its even one (VDPBF16PS; Intel SDM vol. 2). AMX adds 16 units
/// at a time: the even products and the odd ones in two chains from zero, then both to the sum.
///
/// Bits   c[i,j] is one chain of fused multiply-adds over k, in order, wherever the tile lies; then
///        one multiplication by `scale` (exact for 1) and one addition. Every instruction set
///        except AMX gives bit-identical results. Pairs: subnormals count as zero, on both sides.
#pragma once

#include <cstdint>

#include "core/dtype.h"
#include "kernels/isa.h"

namespace sherd::kernels::cpu {

struct Tile {
  std::int64_t depth = 0;    ///< in units
  const float* a = nullptr;  ///< a[i,k] at a[i * a_row + k * a_depth]
  std::int64_t a_row = 0, a_depth = 1;
  const float* b = nullptr;  ///< a panel: b[k,j] at b[k * columns + j], all of them readable
  float* c = nullptr;
  std::int64_t c_stride = 0;
  float scale = 1.0f;
  bool add = false;
  const float* bias = nullptr;  ///< added to every row; not together with `add`
  /// If set, c's elements are written here, rounded to nearest even, and c isn't written.
  BFloat16* rounded = nullptr;
  std::int64_t rounded_stride = 0;
  /// What to prefetch into the L2 cache: a line of 64 bytes for every unit of the depth.
  const float* fetch = nullptr;
};

/// How a matrix is packed for a kernel: panels.h.
enum class Units { kFloats, kPairs, kTiles };

struct TileKernels {
  int rows = 0, columns = 0;  ///< size of a whole tile
  Units units = Units::kFloats;
  bool can_round = false;  ///< whether `Tile::rounded` is supported
  /// Only [0, num_rows) x [0, num_columns) of c is touched.
  void (*multiply)(const Tile&, int num_rows, int num_columns) = nullptr;
  /// The same with a packed in a panel: a[i,k] is at a[k * rows + i], and all rows can be read.
  void (*multiply_packed)(const Tile&, int num_rows, int num_columns) = nullptr;
  /// Before a thread's first and after its last tile of a task; may be null.
  void (*begin)() = nullptr;
  void (*end)() = nullptr;
};

/// Maximum over all instruction sets. Buffers are sized by it, so plans are the same everywhere.
inline constexpr int kMaxTileRows = 32;
inline constexpr int kMaxTileColumns = 32;
/// A multiple of the rows of all float tiles, and of all pair tiles.
inline constexpr int kTileRowsMultiple = 12;

const TileKernels& float_tiles(Isa isa);
/// The kernels that multiply this type.
const TileKernels& tiles_of(DType dtype, Isa isa);
/// For bf16; null if the instruction set has no dot products; float tiles are used then.
const TileKernels* bf16_tiles(Isa isa);

/// Whether this build has the instruction set's files.
bool is_compiled(Isa isa);

/// Multiply-adds and additions per second of one thread, on panels in the L1 cache: the upper bound
/// of matmuls of this type. The best of a few measurements of microseconds each.
double tile_rate(DType dtype, Isa isa);

/// Whether AVX-512 BF16's dot products are available and faster than multiply-adds on widened
/// floats.
bool bf16_dots_pay();

// The kernels of each folder; null if not compiled.
const TileKernels* avx2_float_tiles();
const TileKernels* avx512_float_tiles();
const TileKernels* avx512_bf16_pair_tiles();
const TileKernels* amx_tiles();

}  // namespace sherd::kernels::cpu
