/// A matmul of a run (run.h), and how it is cut into blocks and tasks.
#pragma once

#include <algorithm>
#include <cstdint>

#include "kernels/cpu/matmul/run.h"
#include "kernels/cpu/matmul/schedule.h"
#include "kernels/cpu/matmul/tile.h"
#include "kernels/cpu/round_up.h"

namespace sherd::kernels::cpu {

// 72 rows by kMaxDepth: 216 KiB of a second cache.
inline constexpr std::int64_t kGroupRows = 72;
// The block of a 16-bit output whose sums are kept in f32 from one piece of the depth to the next.
inline constexpr std::int64_t kSumRows = 1056, kSumColumns = 1024;
static_assert(kGroupRows % kTileRowsMultiple == 0 && kSumRows % kMaxTileRows == 0 &&
              kSumRows % kTileRowsMultiple == 0);
// Where a block has fewer groups of rows than there are threads, its columns are divided, too, which
// packs the rows once for each part. With four tasks for each thread, the next block is packed while
// enough of this one remain.
inline constexpr std::int64_t kTasksOfAThread = 4, kLeastColumns = 64;
// AMX's units take half the room, and its tiles of 32 rows want more of them at a time.
inline constexpr std::int64_t kGroupRowsOfAmx = 128;
static_assert(kGroupRowsOfAmx * kMaxDepth / 2 <= kGroupRows * kMaxDepth);

// The size of even pieces of at most `most`, rounded up to a multiple, of which `most` is one.
inline std::int64_t even_piece(std::int64_t whole, std::int64_t most, std::int64_t multiple) {
  return round_up(ceil_div(whole, ceil_div(whole, most)), multiple);
}

inline std::int64_t rows_multiple(const TileKernels& tiles) {
  return tiles.units == Units::kTiles ? kMaxTileRows : kTileRowsMultiple;
}
inline std::int64_t group_rows(const TileKernels& tiles) {
  return tiles.units == Units::kTiles ? kGroupRowsOfAmx : kGroupRows;
}

// The columns of a block that one task multiplies.
inline std::int64_t columns_of_a_task(std::int64_t block_columns, std::int64_t groups,
                                      std::int64_t threads) {
  if (threads == 1 || groups == 0 || groups >= threads) return block_columns;
  const std::int64_t parts = std::min(ceil_div(kTasksOfAThread * threads, groups),
                                      std::max<std::int64_t>(1, block_columns / kLeastColumns));
  return round_up(ceil_div(block_columns, parts), kMaxTileColumns);
}

// One of the matmuls of a run, and how it is cut into blocks.
struct Product : Matmul {
  Product(const Matmul& matmul, const TileKernels& tiles, std::int64_t first, int threads)
      : Matmul(matmul),
        keeps_sums(cpu::keeps_sums(matmul.c.dtype, matmul.depth)),
        block_depth(matmul_depth_piece(depth)),
        block_rows(keeps_sums ? even_piece(rows, kSumRows, rows_multiple(tiles)) : rows),
        block_columns(even_piece(columns, keeps_sums ? kSumColumns : kMaxColumns, kMaxTileColumns)),
        first_block(first),
        groups(ceil_div(block_rows, rows_multiple(tiles)), group_rows(tiles) / rows_multiple(tiles),
               threads),
        task_columns(rows * columns * depth < kLeastForThreads
                         ? block_columns
                         : columns_of_a_task(block_columns, groups.count(), threads)) {}

  std::int64_t depth_pieces() const { return ceil_div(depth, block_depth); }
  std::int64_t num_blocks() const {
    return ceil_div(rows, block_rows) * ceil_div(columns, block_columns) * depth_pieces();
  }
  // Parts of a block that are multiplied: groups of rows, and parts of columns of each.
  std::int64_t parts_of_columns() const { return ceil_div(block_columns, task_columns); }
  std::int64_t num_parts() const { return groups.count() * parts_of_columns(); }

  bool keeps_sums;
  std::int64_t block_depth, block_rows, block_columns;  // of a block, at most
  std::int64_t first_block;                             // among all of the run
  RowGroups groups;
  std::int64_t task_columns;
};

// A block of the output and a piece of the depth: what one b is packed for.
struct Block {
  const Product* of;
  std::int64_t row, rows, column, columns, k, depth;
  bool is_first, is_last;  // piece of the depth
};

}  // namespace sherd::kernels::cpu
