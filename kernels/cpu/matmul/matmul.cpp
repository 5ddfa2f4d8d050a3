#include "kernels/cpu/matmul/matmul.h"

#include <algorithm>

#include "kernels/cpu/convert.h"
#include "kernels/cpu/flush_subnormals.h"
#include "kernels/cpu/matmul/one_row.h"
#include "kernels/cpu/matmul/pack.h"
#include "kernels/dispatch_float.h"

namespace sherd::kernels::cpu {
namespace {

// 72 rows by 768: 216 KiB of a second cache. 768 by 1536: 4.5 MiB of the last one. Less depth means
// that the output goes through memory more often: 384 took 4 % longer.
constexpr std::int64_t kMaxDepth = 768;
constexpr std::int64_t kMaxColumns = 1536;
constexpr std::int64_t kGroupRows = 72;
constexpr std::int64_t kTaskColumns = 128;  // of b, packed by one task
// So few rows (a step of decoding) make packing b most of the work: each task multiplies what it has
// packed while it is in its second cache.
constexpr std::int64_t kFewRows = 12, kColumnsOfFewRows = 64;
constexpr std::int64_t kSlack = 16;  // packing may write a little beyond the last panel
// The block of a 16-bit output whose sums are kept in f32 from one piece of the depth to the next.
constexpr std::int64_t kSumRows = 1056, kSumColumns = 1024;
static_assert(kGroupRows % kTileRowsMultiple == 0 && kSumRows % kMaxTileRows == 0 &&
              kSumRows % kTileRowsMultiple == 0);
// AMX's units take half the room, and its tiles of 32 rows want more of them at a time.
constexpr std::int64_t kGroupRowsOfAmx = 128;
static_assert(kGroupRowsOfAmx * kMaxDepth / 2 <= kGroupRows * kMaxDepth);

std::int64_t ceil_div(std::int64_t a, std::int64_t b) {
  return (a + b - 1) / b;
}
std::int64_t round_up(std::int64_t a, std::int64_t b) {
  return ceil_div(a, b) * b;
}
// The size of even pieces of at most `most`, rounded up to a multiple, of which `most` is one.
std::int64_t even_piece(std::int64_t whole, std::int64_t most, std::int64_t multiple) {
  return round_up(ceil_div(whole, ceil_div(whole, most)), multiple);
}

bool keeps_sums(const DType c_dtype, std::int64_t depth) {
  return c_dtype != DType::kF32 && depth > kMaxDepth;
}

// A block of the output and a piece of the depth: what one b is packed for.
struct Block {
  std::int64_t row, rows, column, columns, k, depth;
  bool is_first, is_last;  // piece of the depth
};

// One matmul on one instruction set.
class Run {
 public:
  Run(const Matmul& matmul, const Tensor& workspace)
      : p_(matmul),
        tiles_(tiles_of(matmul.dtype, isa())),
        pack_a_(packing_of_rows(matmul.dtype, tiles_)),
        pack_b_(packing_of_columns(matmul.dtype, tiles_)),
        keeps_sums_(keeps_sums(matmul.c.dtype, matmul.depth)),
        b_panels_(static_cast<float*>(workspace.data)),
        sums_(b_panels_ + b_floats(matmul.columns, matmul.depth)) {}

  static std::int64_t b_floats(std::int64_t columns, std::int64_t depth) {
    return std::min(round_up(columns, kMaxTileColumns), kMaxColumns) *
           std::min(round_up(depth, 16), kMaxDepth);
  }

  void operator()(ThreadTeam& team) const {
    const std::int64_t depth = matmul_depth_piece(p_.depth);
    const std::int64_t rows =
        keeps_sums_ ? even_piece(p_.rows, kSumRows, rows_multiple()) : p_.rows;
    const std::int64_t columns =
        even_piece(p_.columns, keeps_sums_ ? kSumColumns : kMaxColumns, kMaxTileColumns);
    for (std::int64_t row = 0; row < p_.rows; row += rows) {
      for (std::int64_t column = 0; column < p_.columns; column += columns) {
        for (std::int64_t k = 0; k < p_.depth; k += depth) {
          compute(team, {row, std::min(rows, p_.rows - row), column,
                         std::min(columns, p_.columns - column), k, std::min(depth, p_.depth - k),
                         k == 0, k + depth >= p_.depth});
        }
      }
    }
  }

 private:
  std::int64_t rows_multiple() const {
    return tiles_.units == Units::kTiles ? kMaxTileRows : kTileRowsMultiple;
  }

  std::int64_t units(const Block& block) const {
    return num_units(p_.dtype, tiles_.units, block.depth);
  }

  const void* element(const MatmulOperand& matrix, std::int64_t row, std::int64_t column) const {
    const std::int64_t at =
        matrix.transposed ? column * matrix.stride + row : row * matrix.stride + column;
    return static_cast<const char*>(matrix.data) +
           at * static_cast<std::int64_t>(size_of(p_.dtype));
  }

  void compute(ThreadTeam& team, const Block& block) const {
    // Below half a million products, or 256 KiB to read, a second thread costs more than it brings.
    const bool few_rows = block.rows <= kFewRows;
    const bool alone = few_rows ? block.columns * block.depth < (1 << 16)
                                : block.rows * block.columns * block.depth < (1 << 19);
    const auto each = [&](std::int64_t num_tasks, const auto& task) {
      if (!alone) return team.parallel_for(num_tasks, task);
      for (std::int64_t i = 0; i < num_tasks; ++i) task(i, 0);
    };
    const auto pack = [&](std::int64_t first, std::int64_t columns) {
      pack_b(block, first, std::min(columns, block.columns - first));
    };
    if (few_rows) {
      return each(ceil_div(block.columns, kColumnsOfFewRows), [&](std::int64_t task, int) {
        const std::int64_t first = task * kColumnsOfFewRows;
        pack(first, kColumnsOfFewRows);
        multiply(block, 0, block.rows, first, std::min(first + kColumnsOfFewRows, block.columns));
      });
    }
    each(ceil_div(block.columns, kTaskColumns),
         [&](std::int64_t task, int) { pack(task * kTaskColumns, kTaskColumns); });
    // Groups of at most as many rows as a thread packs, as many for each thread.
    const std::int64_t multiple = rows_multiple(), tiles = ceil_div(block.rows, multiple);
    const std::int64_t least =
        ceil_div(block.rows, tiles_.units == Units::kTiles ? kGroupRowsOfAmx : kGroupRows);
    const std::int64_t groups = std::min(tiles, round_up(least, team.num_threads()));
    each(groups, [&](std::int64_t g, int) {
      const std::int64_t first = tiles * g / groups * multiple;
      const std::int64_t end = std::min(tiles * (g + 1) / groups * multiple, block.rows);
      multiply(block, first, end - first, 0, block.columns);
    });
  }

  void pack_b(const Block& block, std::int64_t first, std::int64_t columns) const {
    (p_.b.transposed ? pack_b_.along : pack_b_.across)(element(p_.b, block.k, block.column + first),
                                                       p_.b.stride, columns, block.depth,
                                                       b_panels_ + first * units(block));
  }

  // Rows [first, first + rows) and columns [column, end) of the block.
  void multiply(const Block& block, std::int64_t first, std::int64_t rows, std::int64_t column,
                std::int64_t end) const {
    alignas(64) float a_panels[kGroupRows * kMaxDepth + kSlack];
    const FlushSubnormals flush(p_.dtype == DType::kBF16);
    (p_.a.transposed ? pack_a_.across : pack_a_.along)(element(p_.a, block.row + first, block.k),
                                                       p_.a.stride, rows, block.depth, a_panels);
    if (tiles_.begin) tiles_.begin();
    for (std::int64_t j = column; j < end; j += tiles_.columns) {
      const int width = static_cast<int>(std::min<std::int64_t>(tiles_.columns, end - j));
      float bias[kMaxTileColumns];
      const bool with_bias = p_.bias && block.is_first;
      if (with_bias) widen_bias(block.column + j, width, bias);
      for (std::int64_t i = 0; i < rows; i += tiles_.rows) {
        multiply_tile(block, first + i, j, width,
                      {.depth = units(block),
                       .a = a_panels + i * units(block),
                       .b = b_panels_ + j * units(block),
                       .bias = with_bias ? bias : nullptr,
                       .fetch = next_panel(block, i, j)},
                      static_cast<int>(std::min<std::int64_t>(tiles_.rows, rows - i)));
      }
    }
    if (tiles_.end) tiles_.end();
  }

  // The part of the next panel of b that the tiles at row i bring nearer.
  const float* next_panel(const Block& block, std::int64_t i, std::int64_t j) const {
    const std::int64_t from = i / tiles_.rows * units(block) * 16;
    const std::int64_t panel = tiles_.columns * units(block);
    if (from >= panel || j + tiles_.columns >= block.columns) return nullptr;
    return b_panels_ + j * units(block) + panel + from;
  }

  void widen_bias(std::int64_t column, int width, float* bias) const {
    std::fill(bias + width, bias + kMaxTileColumns, 0.0f);
    dispatch_float(
        p_.dtype, [&]<class T>(T) { widen(static_cast<const T*>(p_.bias) + column, bias, width); });
  }

  // The tile at row i, column j of the block: into c itself where that is f32, else into the sums,
  // and from there, rounded, into c.
  void multiply_tile(const Block& block, std::int64_t i, std::int64_t j, int width, Tile tile,
                     int rows) const {
    const std::int64_t at = (block.row + i) * p_.columns + block.column + j;
    if (p_.c.dtype == DType::kF32) {
      tile.c = p_.c.as<float>() + at;
      tile.c_stride = p_.columns;
      tile.add = p_.add || !block.is_first;
      return tiles_.multiply_packed(tile, rows, width);
    }
    alignas(64) float aside[kMaxTileRows * kMaxTileColumns];
    tile.c = keeps_sums_ ? sums_ + i * kSumColumns + j : aside;
    tile.c_stride = keeps_sums_ ? kSumColumns : kMaxTileColumns;
    tile.add = !block.is_first;
    tiles_.multiply_packed(tile, rows, width);
    if (block.is_last) put(tile, rows, width, at);
  }

  void put(const Tile& tile, int rows, int width, std::int64_t at) const {
    dispatch_float(p_.c.dtype, [&]<class R>(R) {
      for (int r = 0; r < rows; ++r) {
        const float* sums = tile.c + r * tile.c_stride;
        R* out = p_.c.as<R>() + at + r * p_.columns;
        if (p_.add) {
          add_narrowed(sums, out, width);
        } else {
          narrow(sums, out, width);
        }
      }
    });
  }

  const Matmul& p_;
  const TileKernels& tiles_;
  Packing pack_a_, pack_b_;
  bool keeps_sums_;
  float *b_panels_, *sums_;
};

}  // namespace

void matmul(ThreadTeam& team, const Matmul& p, const Tensor& workspace) {
  const std::int64_t needed = matmul_workspace_bytes(p.rows, p.columns, p.depth, p.c.dtype);
  CHECK(workspace.bytes() >= needed, "matmul: a workspace of {} bytes, {} needed",
        workspace.bytes(), needed);
  if (is_one_row(p)) return multiply_one_row(team, p);
  Run(p, workspace)(team);
}

std::int64_t matmul_workspace_bytes(std::int64_t rows, std::int64_t columns, std::int64_t depth,
                                    DType c_dtype) {
  const std::int64_t sums = keeps_sums(c_dtype, depth) ? std::min(rows, kSumRows) * kSumColumns : 0;
  return 4 * (Run::b_floats(columns, depth) + sums);
}

std::int64_t matmul_depth_piece(std::int64_t depth) {
  std::int64_t pieces = 1;
  while (ceil_div(depth, pieces) > kMaxDepth) pieces *= 2;
  return std::min(depth, round_up(ceil_div(depth, pieces), 8));
}

}  // namespace sherd::kernels::cpu
