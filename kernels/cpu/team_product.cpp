#include "kernels/cpu/team_product.h"

#include <algorithm>

#include "kernels/cpu/tile_product.h"

namespace sherd::kernels::cpu {
namespace {

// 12 tiles of 6 rows by 768: 216 KiB of a second cache. 768 by 1536: 4.5 MiB of the last one, which
// the threads share. Less depth means that the output goes through memory more often: 384 took 4 %
// longer.
constexpr std::int64_t kMaxDepth = 768;
constexpr std::int64_t kMaxColumns = 1536;
constexpr std::int64_t kAllColumns = 6144;  // of all threads together
constexpr std::int64_t kMaxRowTiles = 12;
constexpr std::int64_t kSlack = 16;  // packing may write a little beyond the last panel

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
std::int64_t most_columns(int num_threads) {
  return std::clamp(kAllColumns / num_threads / kTileColumns * kTileColumns, std::int64_t{128},
                    kMaxColumns);
}

std::int64_t a_floats(std::int64_t rows, std::int64_t depth) {
  const std::int64_t tiles = std::min(ceil_div(rows, kTileRows), kMaxRowTiles);
  return ceil_div(tiles * kTileRows * depth_of_piece(depth) + kSlack, 16) * 16;
}
std::int64_t b_floats(std::int64_t columns, std::int64_t depth, int num_threads) {
  const std::int64_t whole = ceil_div(columns, kTileColumns) * kTileColumns;
  return std::min(whole, most_columns(num_threads)) * depth_of_piece(depth);
}

const float* element(const GemmOperand& matrix, std::int64_t row, std::int64_t column) {
  return matrix.data +
         (matrix.transposed ? column * matrix.stride + row : row * matrix.stride + column);
}

// A thread's part of the output, or what of it is multiplied at one time: these rows and columns,
// summed over [k, k + depth).
struct Piece {
  std::int64_t row, rows, column, columns, k = 0, depth = 0;
};

void pack_b(const TeamProduct& p, const Piece& piece, float* panels) {
  const MatrixView b{element(p.b, piece.k, piece.column), p.b.stride};
  if (p.b.transposed) {
    pack_columns_of_transpose(b, piece.depth, piece.columns, panels);
  } else {
    pack_columns(b, piece.depth, piece.columns, panels);
  }
}

void pack_a(const TeamProduct& p, const Piece& piece, float* panels) {
  const MatrixView a{element(p.a, piece.row, piece.k), p.a.stride};
  if (p.a.transposed) {
    pack_rows_of_transpose(a, piece.rows, piece.depth, panels);
  } else {
    pack_rows(a, piece.rows, piece.depth, panels);
  }
}

void multiply_panels(const TeamProduct& p, const Piece& piece, const float* a_panels,
                     const float* b_panels) {
  TileProduct tile{.depth = piece.depth, .c_stride = p.columns, .add = p.add || piece.k > 0};
  for (std::int64_t j = 0; j < piece.columns; j += kTileColumns) {
    const int width = static_cast<int>(std::min<std::int64_t>(kTileColumns, piece.columns - j));
    tile.b = b_panels + j * piece.depth;
    if (p.bias && !tile.add) tile.bias = p.bias + piece.column + j;
    for (std::int64_t i = 0; i < piece.rows; i += kTileRows) {
      tile.a = a_panels + i * piece.depth;
      tile.c = p.c + (piece.row + i) * p.columns + piece.column + j;
      multiply_packed_tile(
          tile, static_cast<int>(std::min<std::int64_t>(kTileRows, piece.rows - i)), width);
    }
  }
}

// One thread's part, with scratch of its own.
void multiply_part(const TeamProduct& p, const Piece& part, std::int64_t most_columns,
                   float* a_panels, float* b_panels) {
  const std::int64_t depth = depth_of_piece(p.depth);
  const std::int64_t columns = even_piece(part.columns, most_columns, kTileColumns);
  const std::int64_t rows = even_piece(part.rows, kMaxRowTiles * kTileRows, kTileRows);
  for (std::int64_t j = 0; j < part.columns; j += columns) {
    for (std::int64_t k = 0; k < p.depth; k += depth) {
      Piece piece{.row = 0,
                  .rows = 0,
                  .column = part.column + j,
                  .columns = std::min(columns, part.columns - j),
                  .k = k,
                  .depth = std::min(depth, p.depth - k)};
      pack_b(p, piece, b_panels);
      for (std::int64_t i = 0; i < part.rows; i += rows) {
        piece.row = part.row + i;
        piece.rows = std::min(rows, part.rows - i);
        pack_a(p, piece, a_panels);
        multiply_panels(p, piece, a_panels, b_panels);
      }
    }
  }
}

// The output cut into one part per thread, so that the least is packed twice: the grid with the
// least perimeter. Below half a million products a thread costs more than it brings.
struct Grid {
  std::int64_t down = 1, across = 1;
};
Grid grid_of(const TeamProduct& p, int num_threads) {
  const std::int64_t tiles = ceil_div(p.rows, kTileRows),
                     panels = ceil_div(p.columns, kTileColumns);
  const std::int64_t parts =
      std::clamp<std::int64_t>(p.rows * p.columns * p.depth >> 19, 1, num_threads);
  Grid best{1, std::min(parts, panels)};
  for (std::int64_t down = 1; down <= parts; ++down) {
    const Grid grid{std::min(down, tiles), std::min(parts / down, panels)};
    const std::int64_t count = grid.down * grid.across, most = best.down * best.across;
    const auto packed = [&](const Grid& g) { return g.down * p.columns + g.across * p.rows; };
    if (count > most || (count == most && packed(grid) < packed(best))) best = grid;
  }
  return best;
}

}  // namespace

void multiply(ThreadTeam& team, const TeamProduct& p, float* workspace) {
  const Grid grid = grid_of(p, team.num_threads());
  const std::int64_t tiles = ceil_div(p.rows, kTileRows),
                     panels = ceil_div(p.columns, kTileColumns);
  const std::int64_t b_size = b_floats(p.columns, p.depth, team.num_threads());
  const std::int64_t own = b_size + a_floats(p.rows, p.depth);
  team.parallel_for(grid.down * grid.across, [&](std::int64_t task, int thread) {
    const std::int64_t down = task % grid.down, across = task / grid.down;
    const std::int64_t row = tiles * down / grid.down * kTileRows;
    const std::int64_t column = panels * across / grid.across * kTileColumns;
    const Piece part{
        .row = row,
        .rows = std::min(tiles * (down + 1) / grid.down * kTileRows, p.rows) - row,
        .column = column,
        .columns =
            std::min(panels * (across + 1) / grid.across * kTileColumns, p.columns) - column};
    float* const b_panels = workspace + thread * own;
    multiply_part(p, part, most_columns(team.num_threads()), b_panels + b_size, b_panels);
  });
}

std::int64_t team_product_floats(std::int64_t rows, std::int64_t columns, std::int64_t depth,
                                 int num_threads) {
  return num_threads * (b_floats(columns, depth, num_threads) + a_floats(rows, depth));
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
