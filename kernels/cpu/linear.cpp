// T tokens, I inputs, O outputs. All three products are C [M, N] = A [M, L] B [L, N] with the depth
// L summed: forward (T, O, I), backward_input (T, I, O), backward_weight (O, I, T).
#include "kernels/cpu/linear.h"

#include <algorithm>

#include "kernels/cpu/convert.h"
#include "kernels/cpu/dispatch.h"
#include "kernels/cpu/gemm.h"
#include "kernels/cpu/team_product.h"

namespace sherd::kernels::cpu {
namespace {

std::int64_t ceil_div(std::int64_t a, std::int64_t b) {
  return (a + b - 1) / b;
}
std::int64_t round_up(std::int64_t a, std::int64_t b) {
  return ceil_div(a, b) * b;
}

// The output in cells of row_step x column_step, one task each.
struct Cells {
  std::int64_t rows, columns;
  std::int64_t row_step, column_step;

  std::int64_t down() const { return ceil_div(rows, row_step); }
  std::int64_t across() const { return ceil_div(columns, column_step); }
  std::int64_t count() const { return down() * across(); }
};

// OpenBLAS packs both factors anew for every cell: on 512 x 576 that takes 9 % more than on 1024 x
// 576, and 256 x 128 loses 10 % on 512 x 512. So cells are large; their number is a multiple of
// four, so that 1, 2 and 4 threads share them evenly; and of the grids with that number we take the
// one with the least to pack, the least perimeter. Below a million products a second thread costs
// more than it brings.
Cells cut_into_cells(std::int64_t rows, std::int64_t columns, std::int64_t depth) {
  constexpr std::int64_t kCellArea = 768 * 1024;
  constexpr std::int64_t kRowsMultiple = 8, kColumnsMultiple = 16;
  const std::int64_t products = rows * columns * depth;
  const std::int64_t wanted = products < (1 << 20)   ? 1
                              : products < (1 << 22) ? 2
                                                     : 4 * ceil_div(rows * columns, 4 * kCellArea);
  std::int64_t best_down = 1, best_perimeter = columns + wanted * rows;
  for (std::int64_t down = 2; down <= wanted; ++down) {
    if (wanted % down != 0) continue;
    const std::int64_t perimeter = down * columns + wanted / down * rows;
    if (perimeter < best_perimeter) best_down = down, best_perimeter = perimeter;
  }
  return {rows, columns, round_up(ceil_div(rows, best_down), kRowsMultiple),
          round_up(ceil_div(columns, wanted / best_down), kColumnsMultiple)};
}

template <class T>
struct Operand {
  const T* data;
  std::int64_t stride;
  bool transposed;  // what lies in memory is the transpose of the factor

  const T* at(std::int64_t row, std::int64_t column) const {
    return data + (transposed ? column * stride + row : row * stride + column);
  }
};

// C = A B (+ bias on every row, or + C). A and B of type T, C of type R, bias of type T.
template <class T, class R>
struct Product {
  std::int64_t rows, columns, depth;
  Operand<T> a, b;
  R* c;
  const T* bias = nullptr;
  bool add_to_output = false;
};

struct Cell {
  std::int64_t row, column, rows, columns;
};

Cell cell_of(const Cells& cells, std::int64_t index) {
  const std::int64_t row = index % cells.down() * cells.row_step;
  const std::int64_t column = index / cells.down() * cells.column_step;
  return {row, column, std::min(cells.row_step, cells.rows - row),
          std::min(cells.column_step, cells.columns - column)};
}

// The bias, or zero, as the value that the sum starts from.
template <class T>
void start_from_bias(const T* bias, float* c, std::int64_t stride, std::int64_t rows,
                     std::int64_t columns) {
  for (std::int64_t r = 0; r < rows; ++r) widen(bias, c + r * stride, columns);
}

template <class R>
void put_tile(const float* tile, std::int64_t stride, R* c, std::int64_t c_stride,
              std::int64_t rows, std::int64_t columns, bool add) {
  for (std::int64_t r = 0; r < rows; ++r) {
    if (add) {
      add_narrowed(tile + r * stride, c + r * c_stride, columns);
    } else {
      narrow(tile + r * stride, c + r * c_stride, columns);
    }
  }
}

GemmOperand operand_at(const Operand<float>& operand, std::int64_t row, std::int64_t column) {
  return {operand.at(row, column), operand.stride, operand.transposed};
}

// f32 in, f32 out: OpenBLAS reads and writes the tensors themselves.
void compute_in_place(const Product<float, float>& p, const Cell& cell) {
  float* c = p.c + cell.row * p.columns + cell.column;
  if (p.bias) start_from_bias(p.bias + cell.column, c, p.columns, cell.rows, cell.columns);
  gemm({.rows = cell.rows,
        .columns = cell.columns,
        .depth = p.depth,
        .a = operand_at(p.a, cell.row, 0),
        .b = operand_at(p.b, 0, cell.column),
        .c = c,
        .c_stride = p.columns,
        .add = p.add_to_output || p.bias != nullptr});
}

// f32 in, 16 bits out: the sum is formed on the stack, piece by piece of the cell.
template <class R>
void compute_through_stack(const Product<float, R>& p, const Cell& cell) {
  constexpr std::int64_t kRows = 144, kColumns = 240;
  alignas(64) float tile[kRows * kColumns];
  for (std::int64_t r = 0; r < cell.rows; r += kRows) {
    for (std::int64_t j = 0; j < cell.columns; j += kColumns) {
      const std::int64_t row = cell.row + r, rows = std::min(kRows, cell.rows - r);
      const std::int64_t column = cell.column + j, columns = std::min(kColumns, cell.columns - j);
      if (p.bias) start_from_bias(p.bias + column, tile, kColumns, rows, columns);
      gemm({.rows = rows,
            .columns = columns,
            .depth = p.depth,
            .a = operand_at(p.a, row, 0),
            .b = operand_at(p.b, 0, column),
            .c = tile,
            .c_stride = kColumns,
            .add = p.bias != nullptr});
      put_tile(tile, kColumns, p.c + row * p.columns + column, p.columns, rows, columns,
               p.add_to_output);
    }
  }
}

constexpr std::int64_t kDepthChunk = 256;

// One thread's scratch for 16-bit inputs: a chunk of either factor and the cell's sum, in f32.
std::int64_t scratch_floats(const Cells& cells, std::int64_t depth) {
  const std::int64_t chunk = std::min(depth, kDepthChunk);
  const std::int64_t rows = std::min(cells.row_step, cells.rows);
  const std::int64_t columns = std::min(cells.column_step, cells.columns);
  return round_up((rows + columns) * chunk + rows * columns, 16);
}

template <class T>
GemmOperand widen_chunk(const Operand<T>& operand, std::int64_t row, std::int64_t column,
                        std::int64_t rows, std::int64_t columns, float* out) {
  if (operand.transposed) std::swap(rows, columns);
  widen_rows(operand.at(row, column), operand.stride, out, columns, rows, columns);
  return {out, columns, operand.transposed};
}

// 16 bits in: the depth is walked in chunks that are widened into `scratch`.
template <class T, class R>
void compute_widened(const Product<T, R>& p, const Cell& cell, float* scratch) {
  float* tile = scratch;
  float* a = tile + cell.rows * cell.columns;
  float* b = a + cell.rows * std::min(p.depth, kDepthChunk);
  if (p.bias) start_from_bias(p.bias + cell.column, tile, cell.columns, cell.rows, cell.columns);
  for (std::int64_t k = 0; k < p.depth; k += kDepthChunk) {
    const std::int64_t depth = std::min(kDepthChunk, p.depth - k);
    gemm({.rows = cell.rows,
          .columns = cell.columns,
          .depth = depth,
          .a = widen_chunk(p.a, cell.row, k, cell.rows, depth, a),
          .b = widen_chunk(p.b, k, cell.column, depth, cell.columns, b),
          .c = tile,
          .c_stride = cell.columns,
          .add = k > 0 || p.bias != nullptr});
  }
  put_tile(tile, cell.columns, p.c + cell.row * p.columns + cell.column, p.columns, cell.rows,
           cell.columns, p.add_to_output);
}

template <class T, class R>
void compute_cell(const Product<T, R>& p, const Cell& cell, float* scratch) {
  if constexpr (!std::is_same_v<T, float>) {
    compute_widened(p, cell, scratch);
  } else if constexpr (std::is_same_v<R, float>) {
    compute_in_place(p, cell);
  } else {
    compute_through_stack(p, cell);
  }
}

float* checked_scratch(const Tensor& workspace, std::int64_t floats) {
  CHECK(workspace.bytes() >= floats * 4, "linear: a workspace of {} bytes, {} needed",
        workspace.bytes(), floats * 4);
  return static_cast<float*>(workspace.data);
}

// f32 throughout, room to pack in, and a processor whose fastest products are our own.
bool multiplied_by_team(ThreadTeam& team, const Tensor& workspace, const Product<float, float>& p) {
  if (!workspace || !team_product_is_fastest()) return false;
  multiply(team,
           {.rows = p.rows,
            .columns = p.columns,
            .depth = p.depth,
            .a = operand_at(p.a, 0, 0),
            .b = operand_at(p.b, 0, 0),
            .c = p.c,
            .bias = p.bias,
            .add = p.add_to_output},
           checked_scratch(workspace,
                           team_product_floats(p.rows, p.columns, p.depth, team.num_threads())));
  return true;
}
template <class T, class R>
bool multiplied_by_team(ThreadTeam&, const Tensor&, const Product<T, R>&) {
  return false;
}

// Runs the product's cells, and after them `num_more` tasks `more(i)` in the same loop.
template <class T, class R, class More>
void run_product(ThreadTeam& team, const Tensor& workspace, const Product<T, R>& p,
                 std::int64_t num_more, const More& more) {
  if (multiplied_by_team(team, workspace, p)) {
    return team.parallel_for(num_more, [&](std::int64_t task, int) { more(task); });
  }
  const Cells cells = cut_into_cells(p.rows, p.columns, p.depth);
  const std::int64_t floats = std::is_same_v<T, float> ? 0 : scratch_floats(cells, p.depth);
  float* scratch = checked_scratch(workspace, floats * team.num_threads());
  team.parallel_for(cells.count() + num_more, [&](std::int64_t task, int thread) {
    if (task < cells.count()) {
      compute_cell(p, cell_of(cells, task), scratch + thread * floats);
    } else {
      more(task - cells.count());
    }
  });
}

constexpr std::int64_t kBiasColumns = 128;

// dbias for columns [first, first + kBiasColumns): rows are added within blocks, then the blocks.
template <class T, class R>
void sum_rows(const T* dy, const LinearShape& shape, std::int64_t first, R* dbias, bool add) {
  constexpr std::int64_t kBlock = 64;
  const std::int64_t columns = std::min(kBiasColumns, shape.outputs - first);
  float total[kBiasColumns] = {}, row[kBiasColumns];
  for (std::int64_t begin = 0; begin < shape.tokens; begin += kBlock) {
    float block[kBiasColumns] = {};
    const std::int64_t end = std::min(begin + kBlock, shape.tokens);
    for (std::int64_t t = begin; t < end; ++t) {
      widen(dy + t * shape.outputs + first, row, columns);
#pragma omp simd
      for (std::int64_t j = 0; j < columns; ++j) block[j] += row[j];
    }
#pragma omp simd
    for (std::int64_t j = 0; j < columns; ++j) total[j] += block[j];
  }
  put_tile(total, columns, dbias + first, columns, 1, columns, add);
}

}  // namespace

void linear_forward(ThreadTeam& team, const LinearForward& args) {
  const auto [T, I, O] = args.shape;
  dispatch_float(args.x.dtype, [&]<class X>(X) {
    const Product<X, X> product{.rows = T,
                                .columns = O,
                                .depth = I,
                                .a = {args.x.as<X>(), I, false},
                                .b = {args.w.as<X>(), I, true},
                                .c = args.y.as<X>(),
                                .bias = args.bias.as<X>()};
    run_product(team, args.workspace, product, 0, [](std::int64_t) {});
  });
}

void linear_backward_input(ThreadTeam& team, const LinearBackwardInput& args) {
  const auto [T, I, O] = args.shape;
  dispatch_float(args.dy.dtype, [&]<class X>(X) {
    const Product<X, X> product{.rows = T,
                                .columns = I,
                                .depth = O,
                                .a = {args.dy.as<X>(), O, false},
                                .b = {args.w.as<X>(), I, false},
                                .c = args.dx.as<X>(),
                                .add_to_output = args.add_to_output};
    run_product(team, args.workspace, product, 0, [](std::int64_t) {});
  });
}

void linear_backward_weight(ThreadTeam& team, const LinearBackwardWeight& args) {
  const auto [T, I, O] = args.shape;
  const auto compute = [&]<class X, class R>(X, R) {
    const Product<X, R> product{.rows = O,
                                .columns = I,
                                .depth = T,
                                .a = {args.dy.as<X>(), O, true},
                                .b = {args.x.as<X>(), I, false},
                                .c = args.dw.as<R>(),
                                .add_to_output = args.add_to_output};
    const std::int64_t bias_tasks = args.dbias ? ceil_div(O, kBiasColumns) : 0;
    run_product(team, args.workspace, product, bias_tasks, [&](std::int64_t task) {
      sum_rows(args.dy.as<X>(), args.shape, task * kBiasColumns, args.dbias.as<R>(),
               args.add_to_output);
    });
  };
  dispatch_float(args.dy.dtype,
                 [&](auto x) { dispatch_float(args.dw.dtype, [&](auto r) { compute(x, r); }); });
}

std::int64_t linear_workspace_bytes(const LinearShape& shape, DType dtype, int num_threads) {
  const auto [T, I, O] = shape;
  if (dtype == DType::kF32) {
    return 4 * std::max({team_product_floats(T, O, I, num_threads),
                         team_product_floats(T, I, O, num_threads),
                         team_product_floats(O, I, T, num_threads)});
  }
  const std::int64_t floats = std::max({scratch_floats(cut_into_cells(T, O, I), I),
                                        scratch_floats(cut_into_cells(T, I, O), O),
                                        scratch_floats(cut_into_cells(O, I, T), T)});
  return floats * 4 * num_threads;
}

}  // namespace sherd::kernels::cpu
