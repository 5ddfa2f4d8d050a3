#include "kernels/cpu/matmul/run.h"

#include <algorithm>
#include <cstring>
#include <iterator>
#include <vector>

#include "kernels/cpu/convert.h"
#include "kernels/cpu/flush_subnormals.h"
#include "kernels/cpu/interleaved.h"
#include "kernels/cpu/matmul/pack.h"
#include "kernels/cpu/matmul/schedule.h"
#include "kernels/cpu/round_up.h"
#include "kernels/dispatch_float.h"

namespace sherd::kernels::cpu {
namespace {

// 72 rows by kMaxDepth: 216 KiB of a second cache.
constexpr std::int64_t kGroupRows = 72;
constexpr std::int64_t kTaskColumns = 128;  // of b, packed by one task
constexpr std::int64_t kColumnsOfFewRows = 64;
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

std::int64_t rows_multiple(const TileKernels& tiles) {
  return tiles.units == Units::kTiles ? kMaxTileRows : kTileRowsMultiple;
}
std::int64_t group_rows(const TileKernels& tiles) {
  return tiles.units == Units::kTiles ? kGroupRowsOfAmx : kGroupRows;
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
               threads) {}

  std::int64_t depth_pieces() const { return ceil_div(depth, block_depth); }
  std::int64_t num_blocks() const {
    return ceil_div(rows, block_rows) * ceil_div(columns, block_columns) * depth_pieces();
  }

  bool keeps_sums;
  std::int64_t block_depth, block_rows, block_columns;  // of a block, at most
  std::int64_t first_block;                             // among all of the run
  RowGroups groups;
};

// A block of the output and a piece of the depth: what one b is packed for.
struct Block {
  const Product* of;
  std::int64_t row, rows, column, columns, k, depth;
  bool is_first, is_last;  // piece of the depth
};

// Matmuls of the same types on one instruction set, one after another in one list of tasks.
class Run {
 public:
  // `sums` floats after the panels of b, where 16-bit outputs are summed.
  Run(std::span<const Product> products, const TileKernels& tiles, std::int64_t floats_of_block,
      bool two_blocks, const Tensor& workspace, bool one_thread)
      : products_(products),
        dtype_(products[0].dtype),
        one_thread_(one_thread),
        tiles_(tiles),
        pack_a_(packing_of_rows(dtype_, tiles_)),
        pack_b_(packing_of_columns(dtype_, tiles_)),
        floats_of_block_(floats_of_block),
        b_panels_(static_cast<float*>(workspace.data)),
        sums_(b_panels_ + (two_blocks ? 2 : 1) * floats_of_block) {}

  void operator()(ThreadTeam& team) const {
    const Product& last = products_.back();
    const std::int64_t blocks = last.first_block + last.num_blocks();
    std::int64_t packs = 0, groups = 0, work = 0;
    for (const Product& p : products_) {
      packs = std::max(packs, ceil_div(p.block_columns, kTaskColumns));
      groups = std::max(groups, p.groups.count());
      work += p.rows * p.columns * p.depth;
    }
    const MatmulSchedule schedule(blocks, packs, groups);
    const auto needs = [&](std::int64_t i) {
      const MatmulTask task = schedule.task(i);
      return schedule.needs(task, task.packs ? Before::kNothing : before(task.block));
    };
    const auto run_task = [&](const MatmulTask& task) {
      const Block block = block_at(task.block);
      if (task.packs) return pack_b(block, task.block, task.part * kTaskColumns, kTaskColumns);
      if (task.part >= block.of->groups.count()) return;
      const std::int64_t unit = rows_multiple(tiles_);
      const std::int64_t first = block.of->groups.begin(task.part) * unit;
      const std::int64_t end = std::min(block.of->groups.begin(task.part + 1) * unit, block.rows);
      if (first < end) multiply(block, task.block, first, end - first, 0, block.columns);
    };
    const auto run = [&](std::int64_t i, int) { run_task(schedule.task(i)); };
    if (!one_thread_ && work >= kLeastForThreads) {
      return team.parallel_for_after(schedule.num_tasks(), needs, run);
    }
    for (std::int64_t b = 0; b < blocks; ++b) {
      for (std::int64_t i = 0; i < packs; ++i) run_task({true, b, i});
      for (std::int64_t i = 0; i < groups; ++i) run_task({false, b, i});
    }
  }

  // One product of so few rows (a step of decoding) that packing b is most of the work: each task
  // multiplies what it has packed while it is in its second cache.
  void multiply_few_rows(ThreadTeam& team) const {
    const Product& p = products_[0];
    for (std::int64_t b = 0; b < ceil_div(p.columns, p.block_columns) * p.depth_pieces(); ++b) {
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

 private:
  const Product& product_of(std::int64_t block) const {
    return *std::prev(std::upper_bound(
        products_.begin(), products_.end(), block,
        [](std::int64_t b, const Product& product) { return b < product.first_block; }));
  }

  // Rows outermost, the depth innermost.
  Block block_at(std::int64_t number) const {
    const Product& p = product_of(number);
    const std::int64_t block = number - p.first_block;
    const std::int64_t piece = block % p.depth_pieces(), rest = block / p.depth_pieces();
    const std::int64_t in_a_row = ceil_div(p.columns, p.block_columns);
    const std::int64_t row = rest / in_a_row * p.block_rows;
    const std::int64_t column = rest % in_a_row * p.block_columns, k = piece * p.block_depth;
    return {&p,
            row,
            std::min(p.block_rows, p.rows - row),
            column,
            std::min(p.block_columns, p.columns - column),
            k,
            std::min(p.block_depth, p.depth - k),
            piece == 0,
            piece + 1 == p.depth_pieces()};
  }

  // What a block's groups need of the block before: the sums go on from there, or are begun where
  // others lay.
  Before before(std::int64_t b) const {
    if (b == 0) return Before::kNothing;
    const Block block = block_at(b), previous = block_at(b - 1);
    const bool keeps = block.of->keeps_sums;
    if (block.of != previous.of || block.row != previous.row) {
      return keeps ? Before::kAll : Before::kNothing;
    }
    return block.is_first && !keeps ? Before::kNothing : Before::kSameGroup;
  }

  std::int64_t units(const Block& block) const {
    return num_units(dtype_, tiles_.units, block.depth);
  }

  const void* element(const MatmulOperand& matrix, std::int64_t row, std::int64_t column) const {
    const std::int64_t at =
        matrix.transposed ? column * matrix.stride + row : row * matrix.stride + column;
    return static_cast<const char*>(matrix.data) + at * static_cast<std::int64_t>(size_of(dtype_));
  }

  const std::uint32_t* interleaved(const Block& block, std::int64_t column, std::int64_t k) const {
    const std::int64_t per_unit = 4 / static_cast<std::int64_t>(size_of(dtype_));
    return interleaved_unit(block.of->b.data, block.of->b.stride / per_unit, column, k / per_unit);
  }

  float* panels_of(std::int64_t b) const {
    return b_panels_ + (one_thread_ ? 0 : b % 2) * floats_of_block_;
  }

  // Columns [first, first + columns) of block number b, as far as they are there.
  void pack_b(const Block& block, std::int64_t b, std::int64_t first, std::int64_t columns) const {
    const MatmulOperand& matrix = block.of->b;
    columns = std::min(columns, block.columns - first);
    // Blocks and tasks begin with a multiple of what stands side by side.
    const std::int64_t aside = std::min(columns, matrix.interleaved - block.column - first);
    if (aside > 0) {
      pack_b_.interleaved(interleaved(block, block.column + first, block.k), matrix.stride, aside,
                          block.depth, panels_of(b) + first * units(block));
      first += aside;
      columns -= aside;
    }
    if (columns <= 0) return;
    float* panels = panels_of(b) + first * units(block);
    if (matrix.lines == nullptr) {
      (matrix.transposed ? pack_b_.along : pack_b_.across)(
          element(matrix, block.k, block.column + first), matrix.stride, columns, block.depth,
          panels);
      return;
    }
    alignas(64) float gathered[kTaskColumns * kMaxDepth];
    SHERD_CHECK(!matrix.transposed, "lines of a transposed right matrix");
    gather(matrix, block.k, block.depth, block.column + first, columns, gathered);
    pack_b_.across(gathered, columns, columns, block.depth, panels);
  }

  // Elements [first, first + count) of lines [line, line + lines), one line after another.
  void gather(const MatmulOperand& matrix, std::int64_t line, std::int64_t lines,
              std::int64_t first, std::int64_t count, float* to) const {
    const auto size = static_cast<std::int64_t>(size_of(dtype_));
    const char* from = static_cast<const char*>(matrix.data) + first * size;
    char* out = reinterpret_cast<char*>(to);
    for (std::int64_t i = 0; i < lines; ++i, out += count * size) {
      std::memcpy(out, from + matrix.lines[line + i] * matrix.stride * size,
                  static_cast<std::size_t>(count * size));
    }
  }

  // Rows [first, first + rows) of the block's left matrix.
  void pack_a(const Block& block, std::int64_t first, std::int64_t rows, float* panels) const {
    const MatmulOperand& matrix = block.of->a;
    if (matrix.lines == nullptr) {
      return (matrix.transposed ? pack_a_.across : pack_a_.along)(
          element(matrix, block.row + first, block.k), matrix.stride, rows, block.depth, panels);
    }
    if (matrix.transposed) {
      alignas(64) float gathered[kGroupRowsOfAmx * kMaxDepth];
      gather(matrix, block.k, block.depth, block.row + first, rows, gathered);
      return pack_a_.across(gathered, rows, rows, block.depth, panels);
    }
    // A panel at a time, which stays in the first cache.
    alignas(64) float gathered[kMaxTileRows * kMaxDepth];
    const std::int64_t panel = rows_multiple(tiles_);
    for (std::int64_t i = 0; i < rows; i += panel) {
      const std::int64_t count = std::min(panel, rows - i);
      gather(matrix, block.row + first + i, count, block.k, block.depth, gathered);
      pack_a_.along(gathered, block.depth, count, block.depth, panels + i * units(block));
    }
  }

  // Rows [first, first + rows) and columns [column, end) of block number b.
  void multiply(const Block& block, std::int64_t b, std::int64_t first, std::int64_t rows,
                std::int64_t column, std::int64_t end) const {
    const float* panels = panels_of(b);
    alignas(64) float a_panels[kGroupRows * kMaxDepth + kSlack];
    const FlushSubnormals flush(dtype_ == DType::kBF16);
    pack_a(block, first, rows, a_panels);
    if (tiles_.begin) tiles_.begin();
    for (std::int64_t j = column; j < end; j += tiles_.columns) {
      const int width = static_cast<int>(std::min<std::int64_t>(tiles_.columns, end - j));
      float bias[kMaxTileColumns];
      const bool with_bias = block.of->bias && block.is_first;
      if (with_bias) widen_bias(block, block.column + j, width, bias);
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

  void widen_bias(const Block& block, std::int64_t column, int width, float* bias) const {
    std::fill(bias + width, bias + kMaxTileColumns, 0.0f);
    dispatch_float(dtype_, [&]<class T>(T) {
      widen(static_cast<const T*>(block.of->bias) + column, bias, width);
    });
  }

  // The tile at row i, column j of the block: into c itself where that is f32, else into the sums,
  // and from there, rounded, into c.
  void multiply_tile(const Block& block, std::int64_t i, std::int64_t j, int width, Tile tile,
                     int rows) const {
    const Product& p = *block.of;
    const std::int64_t at = (block.row + i) * p.columns + block.column + j;
    if (p.c.dtype == DType::kF32) {
      tile.c = p.c.as<float>() + at;
      tile.c_stride = p.columns;
      tile.add = p.add || !block.is_first;
      return tiles_.multiply_packed(tile, rows, width);
    }
    alignas(64) float aside[kMaxTileRows * kMaxTileColumns];
    tile.c = p.keeps_sums ? sums_ + i * kSumColumns + j : aside;
    tile.c_stride = p.keeps_sums ? kSumColumns : kMaxTileColumns;
    tile.add = !block.is_first;
    const bool rounds = tiles_.can_round && p.c.dtype == DType::kBF16 && !p.add;
    if (rounds && block.is_last) {
      tile.rounded = p.c.as<BFloat16>() + at;
      tile.rounded_stride = p.columns;
    }
    tiles_.multiply_packed(tile, rows, width);
    if (block.is_last && !rounds) put(p, tile, rows, width, at);
  }

  static void put(const Product& p, const Tile& tile, int rows, int width, std::int64_t at) {
    dispatch_float(p.c.dtype, [&]<class R>(R) {
      for (int r = 0; r < rows; ++r) {
        const float* sums = tile.c + r * tile.c_stride;
        R* out = p.c.as<R>() + at + r * p.columns;
        if (p.add) {
          add_narrowed(sums, out, width);
        } else {
          narrow(sums, out, width);
        }
      }
    });
  }

  std::span<const Product> products_;
  DType dtype_;
  bool one_thread_;
  const TileKernels& tiles_;
  Packing pack_a_, pack_b_;
  std::int64_t floats_of_block_;
  float *b_panels_, *sums_;
};

}  // namespace

std::int64_t floats_of_block(std::int64_t columns, std::int64_t depth) {
  return std::min(round_up(columns, kMaxTileColumns), kMaxColumns) *
         std::min(round_up(depth, 16), kMaxDepth);
}

std::int64_t sum_floats(std::int64_t rows, std::int64_t depth, DType c_dtype) {
  return keeps_sums(c_dtype, depth) ? std::min(rows, kSumRows) * kSumColumns : 0;
}

void run_matmuls(ThreadTeam& team, std::span<const Matmul> list, bool two_blocks,
                 const Tensor& workspace) {
  const bool one_thread = team.num_threads() == 1;
  const TileKernels& tiles = tiles_of(list[0].dtype, isa());
  std::int64_t block = 0;
  for (const Matmul& p : list) block = std::max(block, floats_of_block(p.columns, p.depth));
  if (list.size() == 1) {
    const Product product(list[0], tiles, 0, team.num_threads());
    const Run run({&product, 1}, tiles, block, two_blocks, workspace, one_thread);
    return list[0].rows <= kFewRows ? run.multiply_few_rows(team) : run(team);
  }
  std::vector<Product> products;
  products.reserve(list.size());
  std::int64_t blocks = 0;
  for (const Matmul& p : list) {
    products.emplace_back(p, tiles, blocks, team.num_threads());
    blocks += products.back().num_blocks();
  }
  Run(products, tiles, block, two_blocks, workspace, one_thread)(team);
}

}  // namespace sherd::kernels::cpu
