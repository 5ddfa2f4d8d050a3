#include "kernels/cpu/team_product.h"

#include <algorithm>

#include "kernels/cpu/tile_product.h"

namespace sherd::kernels::cpu {
namespace {

// 12 tiles of 6 rows by 768: 216 KiB of a second cache. 768 by 1536: 4.5 MiB of the last one. Less
// depth means that the output goes through memory more often: 384 took 4 % longer.
constexpr std::int64_t kMaxDepth = 768;
constexpr std::int64_t kMaxColumns = 1536;
constexpr std::int64_t kMaxRowTiles = 12;
constexpr std::int64_t kPanelsOfTask = 8;  // of b, packed by one task
constexpr std::int64_t kSlack = 16;        // packing may write a little beyond the last panel

std::int64_t ceil_div(std::int64_t a, std::int64_t b) {
  return (a + b - 1) / b;
}

// The size of even pieces of at most `most`, rounded up to a multiple.
std::int64_t even_piece(std::int64_t whole, std::int64_t most, std::int64_t multiple) {
  return ceil_div(ceil_div(whole, ceil_div(whole, most)), multiple) * multiple;
}
std::int64_t depth_of_piece(std::int64_t depth) {
  return std::min(depth, even_piece(depth, kMaxDepth, 8));
}
std::int64_t columns_of_piece(std::int64_t columns) {
  return even_piece(columns, kMaxColumns, kTileColumns);
}

std::int64_t a_floats(std::int64_t rows, std::int64_t depth) {
  const std::int64_t tiles = std::min(ceil_div(rows, kTileRows), kMaxRowTiles);
  return ceil_div(tiles * kTileRows * depth_of_piece(depth) + kSlack, 16) * 16;
}
std::int64_t b_floats(std::int64_t columns, std::int64_t depth) {
  return columns_of_piece(columns) * depth_of_piece(depth);
}

const float* element(const GemmOperand& matrix, std::int64_t row, std::int64_t column) {
  return matrix.data +
         (matrix.transposed ? column * matrix.stride + row : row * matrix.stride + column);
}

// What is multiplied at one time: [k, k + depth) of the depth and [column, column + columns).
struct Piece {
  std::int64_t k, depth, column, columns;
};

void pack_b(const TeamProduct& p, const Piece& piece, std::int64_t task, float* panels) {
  const std::int64_t first = task * kPanelsOfTask * kTileColumns;
  const std::int64_t columns = std::min(kPanelsOfTask * kTileColumns, piece.columns - first);
  const MatrixView b{element(p.b, piece.k, piece.column + first), p.b.stride};
  float* out = panels + first * piece.depth;
  if (p.b.transposed) {
    pack_columns_of_transpose(b, piece.depth, columns, out);
  } else {
    pack_columns(b, piece.depth, columns, out);
  }
}

// Rows [6 first, 6 end) of the piece's part of the output.
void multiply_rows(const TeamProduct& p, const Piece& piece, std::int64_t first, std::int64_t end,
                   float* a_panels, const float* b_panels) {
  const std::int64_t row = first * kTileRows;
  const std::int64_t rows = std::min(end * kTileRows, p.rows) - row;
  const MatrixView a{element(p.a, row, piece.k), p.a.stride};
  if (p.a.transposed) {
    pack_rows_of_transpose(a, rows, piece.depth, a_panels);
  } else {
    pack_rows(a, rows, piece.depth, a_panels);
  }
  TileProduct tile{.depth = piece.depth,
                   .a_row = 1,
                   .a_depth = kTileRows,
                   .c_stride = p.columns,
                   .add = p.add || piece.k > 0};
  for (std::int64_t j = 0; j < piece.columns; j += kTileColumns) {
    const int width = static_cast<int>(std::min<std::int64_t>(kTileColumns, piece.columns - j));
    tile.b = b_panels + j * piece.depth;
    if (p.bias && !tile.add) tile.bias = p.bias + piece.column + j;
    for (std::int64_t i = 0; i < rows; i += kTileRows) {
      tile.a = a_panels + i * piece.depth;
      tile.c = p.c + (row + i) * p.columns + piece.column + j;
      multiply_packed_tile(tile, static_cast<int>(std::min<std::int64_t>(kTileRows, rows - i)),
                           width);
    }
  }
}

// Groups of at most kMaxRowTiles, as many for each thread.
std::int64_t num_row_groups(std::int64_t tiles, int num_threads) {
  const std::int64_t least = ceil_div(tiles, kMaxRowTiles);
  return std::min(tiles, ceil_div(least, num_threads) * num_threads);
}

}  // namespace

void multiply(ThreadTeam& team, const TeamProduct& p, float* workspace) {
  const std::int64_t tiles = ceil_div(p.rows, kTileRows);
  const std::int64_t groups = num_row_groups(tiles, team.num_threads());
  float* const b_panels = workspace;
  float* const a_panels = workspace + b_floats(p.columns, p.depth);
  const std::int64_t a_step = a_floats(p.rows, p.depth);
  const std::int64_t depth = depth_of_piece(p.depth), columns = columns_of_piece(p.columns);
  for (std::int64_t column = 0; column < p.columns; column += columns) {
    for (std::int64_t k = 0; k < p.depth; k += depth) {
      const Piece piece{k, std::min(depth, p.depth - k), column,
                        std::min(columns, p.columns - column)};
      const std::int64_t packing = ceil_div(piece.columns, kPanelsOfTask * kTileColumns);
      // Below half a million products a second thread costs more than it brings.
      const bool alone = p.rows * piece.columns * piece.depth < (1 << 19);
      const auto each = [&](std::int64_t num_tasks, const auto& task) {
        if (!alone) return team.parallel_for(num_tasks, task);
        for (std::int64_t i = 0; i < num_tasks; ++i) task(i, 0);
      };
      each(packing, [&](std::int64_t task, int) { pack_b(p, piece, task, b_panels); });
      each(groups, [&](std::int64_t g, int thread) {
        multiply_rows(p, piece, tiles * g / groups, tiles * (g + 1) / groups,
                      a_panels + thread * a_step, b_panels);
      });
    }
  }
}

std::int64_t team_product_floats(std::int64_t rows, std::int64_t columns, std::int64_t depth,
                                 int num_threads) {
  return b_floats(columns, depth) + num_threads * a_floats(rows, depth);
}

bool team_product_is_fastest() {
#if defined(__x86_64__) && defined(__FMA__)
  static const bool narrow = !__builtin_cpu_supports("avx512f");
  return narrow;
#else
  return false;
#endif
}

}  // namespace sherd::kernels::cpu
