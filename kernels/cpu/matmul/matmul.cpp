#include "kernels/cpu/matmul/matmul.h"

#include <algorithm>

#include "kernels/cpu/convert.h"
#include "kernels/cpu/flush_subnormals.h"
#include "kernels/cpu/interleaved.h"
#include "kernels/cpu/matmul/one_row.h"
#include "kernels/cpu/matmul/pack.h"
#include "kernels/cpu/matmul/schedule.h"
#include "kernels/cpu/round_up.h"
#include "kernels/dispatch_float.h"

namespace sherd::kernels::cpu {
namespace {

// 72 rows by 768: 216 KiB of a second cache. 768 by 1536, twice: 9 MiB of the last one. Less depth means
// that the output goes through memory more often: 384 took 4 % longer.
constexpr std::int64_t kMaxDepth = 768;
constexpr std::int64_t kMaxColumns = 1536;
constexpr std::int64_t kGroupRows = 72;
constexpr std::int64_t kTaskColumns = 128;  // of b, packed by one task
constexpr std::int64_t kFewRows = 12, kColumnsOfFewRows = 64;
constexpr std::int64_t kSlack = 16;  // packing may write a little beyond the last panel
// The block of a 16-bit output whose sums are kept in f32 from one piece of the depth to the next.
constexpr std::int64_t kSumRows = 1056, kSumColumns = 1024;
static_assert(kGroupRows % kTileRowsMultiple == 0 && kSumRows % kMaxTileRows == 0 &&
              kSumRows % kTileRowsMultiple == 0);
// What stands side by side doesn't end within a panel, and no task or block begins within it.
static_assert(interleaved_rows(kMaxTileColumns) == kMaxTileColumns &&
              kTaskColumns % kMaxTileColumns == 0 && kColumnsOfFewRows % kMaxTileColumns == 0 &&
              kMaxColumns % kMaxTileColumns == 0 && kSumColumns % kMaxTileColumns == 0);
// AMX's units take half the room, and its tiles of 32 rows want more of them at a time.
constexpr std::int64_t kGroupRowsOfAmx = 128;
static_assert(kGroupRowsOfAmx * kMaxDepth / 2 <= kGroupRows * kMaxDepth);

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
  Run(const Matmul& matmul, const Tensor& workspace, bool one_thread)
      : p_(matmul),
        one_thread_(one_thread),
        tiles_(tiles_of(matmul.dtype, isa())),
        pack_a_(packing_of_rows(matmul.dtype, tiles_)),
        pack_b_(packing_of_columns(matmul.dtype, tiles_)),
        keeps_sums_(keeps_sums(matmul.c.dtype, matmul.depth)),
        depth_(matmul_depth_piece(p_.depth)),
        rows_(keeps_sums_ ? even_piece(p_.rows, kSumRows, rows_multiple()) : p_.rows),
        columns_(even_piece(p_.columns, keeps_sums_ ? kSumColumns : kMaxColumns, kMaxTileColumns)),
        b_panels_(static_cast<float*>(workspace.data)),
        sums_(b_panels_ + b_floats(matmul.columns, matmul.depth, one_thread)) {}

  /// Two blocks of b, if there is more than one and a thread that packs ahead.
  static std::int64_t b_floats(std::int64_t columns, std::int64_t depth, bool one_thread) {
    const bool one = one_thread || (columns <= kMaxColumns && depth <= kMaxDepth);
    return (one ? 1 : 2) * floats_of_block(columns, depth);
  }

  void operator()(ThreadTeam& team) const {
    if (p_.rows <= kFewRows) return multiply_few_rows(team);
    const std::int64_t blocks =
        ceil_div(p_.rows, rows_) * ceil_div(p_.columns, columns_) * depth_pieces();
    const std::int64_t most = tiles_.units == Units::kTiles ? kGroupRowsOfAmx : kGroupRows;
    const RowGroups groups(ceil_div(rows_, rows_multiple()), most / rows_multiple(),
                           team.num_threads());
    const MatmulSchedule schedule(blocks, ceil_div(columns_, kTaskColumns), groups.count());
    const auto needs = [&](std::int64_t i) {
      const MatmulTask task = schedule.task(i);
      return schedule.needs(task, task.packs ? Before::kNothing : before(task.block));
    };
    const auto run_task = [&](const MatmulTask& task) {
      const Block block = block_at(task.block);
      if (task.packs) return pack_b(block, task.block, task.part * kTaskColumns, kTaskColumns);
      const std::int64_t first = groups.begin(task.part) * rows_multiple();
      const std::int64_t end = std::min(groups.begin(task.part + 1) * rows_multiple(), block.rows);
      if (first < end) multiply(block, task.block, first, end - first, 0, block.columns);
    };
    const auto run = [&](std::int64_t i, int) { run_task(schedule.task(i)); };
    // Below half a million multiply-adds a second thread costs more than it brings.
    if (!one_thread_ && p_.rows * p_.columns * p_.depth >= (1 << 19)) {
      return team.parallel_for_after(schedule.num_tasks(), needs, run);
    }
    for (std::int64_t b = 0; b < blocks; ++b) {
      for (std::int64_t i = 0; i < ceil_div(columns_, kTaskColumns); ++i) run_task({true, b, i});
      for (std::int64_t i = 0; i < groups.count(); ++i) run_task({false, b, i});
    }
  }

 private:
  static std::int64_t floats_of_block(std::int64_t columns, std::int64_t depth) {
    return std::min(round_up(columns, kMaxTileColumns), kMaxColumns) *
           std::min(round_up(depth, 16), kMaxDepth);
  }

  std::int64_t depth_pieces() const { return ceil_div(p_.depth, depth_); }

  // Rows outermost, the depth innermost.
  Block block_at(std::int64_t block) const {
    const std::int64_t piece = block % depth_pieces(), rest = block / depth_pieces();
    const std::int64_t in_a_row = ceil_div(p_.columns, columns_);
    const std::int64_t row = rest / in_a_row * rows_, column = rest % in_a_row * columns_;
    const std::int64_t k = piece * depth_;
    return {
        row, std::min(rows_, p_.rows - row), column,     std::min(columns_, p_.columns - column),
        k,   std::min(depth_, p_.depth - k), piece == 0, piece + 1 == depth_pieces()};
  }

  // What a block's groups need of the block before: the sums go on from there, or are begun where others lay.
  Before before(std::int64_t b) const {
    if (b == 0) return Before::kNothing;
    const Block block = block_at(b);
    if (block.row != block_at(b - 1).row) return keeps_sums_ ? Before::kAll : Before::kNothing;
    return block.is_first && !keeps_sums_ ? Before::kNothing : Before::kSameGroup;
  }

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

  const std::uint32_t* interleaved(std::int64_t column, std::int64_t k) const {
    const std::int64_t per_unit = 4 / static_cast<std::int64_t>(size_of(p_.dtype));
    return interleaved_unit(p_.b.data, p_.b.stride / per_unit, column, k / per_unit);
  }

  // So few rows (a step of decoding) that packing b is most of the work: each task multiplies what it has packed while
  // it is in its second cache.
  void multiply_few_rows(ThreadTeam& team) const {
    for (std::int64_t b = 0; b < ceil_div(p_.columns, columns_) * depth_pieces(); ++b) {
      const Block block = block_at(b);
      const auto task = [&](std::int64_t i, int) {
        const std::int64_t first = i * kColumnsOfFewRows;
        pack_b(block, 0, first, kColumnsOfFewRows);
        multiply(block, 0, 0, block.rows, first,
                 std::min(first + kColumnsOfFewRows, block.columns));
      };
      const std::int64_t tasks = ceil_div(block.columns, kColumnsOfFewRows);
      // Below 256 KiB to read a second thread costs more than it brings.
      if (block.columns * block.depth < (1 << 16)) {
        for (std::int64_t i = 0; i < tasks; ++i) task(i, 0);
      } else {
        team.parallel_for(tasks, task);
      }
    }
  }

  float* panels_of(std::int64_t b) const {
    return b_panels_ + (one_thread_ ? 0 : b % 2) * floats_of_block(p_.columns, p_.depth);
  }

  // Columns [first, first + columns) of block number b, as far as they are there.
  void pack_b(const Block& block, std::int64_t b, std::int64_t first, std::int64_t columns) const {
    columns = std::min(columns, block.columns - first);
    // Blocks and tasks begin with a multiple of what stands side by side.
    const std::int64_t aside = std::min(columns, p_.b.interleaved - block.column - first);
    if (aside > 0) {
      pack_b_.interleaved(interleaved(block.column + first, block.k), p_.b.stride, aside,
                          block.depth, panels_of(b) + first * units(block));
      first += aside;
      columns -= aside;
    }
    if (columns <= 0) return;
    (p_.b.transposed ? pack_b_.along : pack_b_.across)(element(p_.b, block.k, block.column + first),
                                                       p_.b.stride, columns, block.depth,
                                                       panels_of(b) + first * units(block));
  }

  // Rows [first, first + rows) and columns [column, end) of block number b.
  void multiply(const Block& block, std::int64_t b, std::int64_t first, std::int64_t rows,
                std::int64_t column, std::int64_t end) const {
    const float* panels = panels_of(b);
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
                       .b = panels + j * units(block),
                       .bias = with_bias ? bias : nullptr,
                       .fetch = next_panel(block, panels, i, j)},
                      static_cast<int>(std::min<std::int64_t>(tiles_.rows, rows - i)));
      }
    }
    if (tiles_.end) tiles_.end();
  }

  // The part of the next panel of b that the tiles at row i bring nearer.
  const float* next_panel(const Block& block, const float* panels, std::int64_t i,
                          std::int64_t j) const {
    const std::int64_t from = i / tiles_.rows * units(block) * 16;
    const std::int64_t panel = tiles_.columns * units(block);
    if (from >= panel || j + tiles_.columns >= block.columns) return nullptr;
    return panels + j * units(block) + panel + from;
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
    const bool rounds = tiles_.can_round && p_.c.dtype == DType::kBF16 && !p_.add;
    if (rounds && block.is_last) {
      tile.rounded = p_.c.as<BFloat16>() + at;
      tile.rounded_stride = p_.columns;
    }
    tiles_.multiply_packed(tile, rows, width);
    if (block.is_last && !rounds) put(tile, rows, width, at);
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
  bool one_thread_;
  const TileKernels& tiles_;
  Packing pack_a_, pack_b_;
  bool keeps_sums_;
  std::int64_t depth_, rows_, columns_;  // of a block, at most
  float *b_panels_, *sums_;
};

}  // namespace

void matmul(ThreadTeam& team, const Matmul& p, const Tensor& workspace) {
  const bool one_thread = team.num_threads() == 1;
  const std::int64_t needed =
      matmul_workspace_bytes(p.rows, p.columns, p.depth, p.c.dtype, one_thread);
  SHERD_CHECK(workspace.bytes() >= needed, "matmul: a workspace of {} bytes, {} needed",
              workspace.bytes(), needed);
  SHERD_CHECK(p.b.interleaved == 0 || (p.b.transposed && can_interleave(p.dtype, p.b.stride) &&
                                       p.b.interleaved == interleaved_rows(p.columns)),
              "matmul: {} of {} columns side by side", p.b.interleaved, p.columns);
  if (is_one_row(p)) return multiply_one_row(team, p);
  Run(p, workspace, one_thread)(team);
}

std::int64_t matmul_workspace_bytes(std::int64_t rows, std::int64_t columns, std::int64_t depth,
                                    DType c_dtype, bool one_thread) {
  const std::int64_t sums = keeps_sums(c_dtype, depth) ? std::min(rows, kSumRows) * kSumColumns : 0;
  return 4 * (Run::b_floats(columns, depth, one_thread) + sums);
}

std::int64_t matmul_depth_piece(std::int64_t depth) {
  std::int64_t pieces = 1;
  while (ceil_div(depth, pieces) > kMaxDepth) pieces *= 2;
  return std::min(depth, round_up(ceil_div(depth, pieces), 8));
}

}  // namespace sherd::kernels::cpu
