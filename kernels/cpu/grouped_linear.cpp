// A thread's workspace: for each level of the tree the sum of an upper half, of some rows; after
// them the matmul's.
#include "kernels/cpu/grouped_linear.h"

#include <algorithm>
#include <bit>
#include <functional>

#include "kernels/cpu/blocks.h"
#include "kernels/cpu/convert.h"
#include "kernels/cpu/matmul/matmul.h"
#include "kernels/cpu/pointwise.h"
#include "kernels/cpu/round_up.h"
#include "kernels/dispatch_float.h"

namespace sherd::kernels::cpu {
namespace {

// Rows of the result at a time, at most: the sums of all levels stay in the cache, and a matrix
// isn't packed too often.
constexpr std::int64_t kRows = 256;
constexpr std::int64_t kTileRows = 8;
constexpr std::int64_t kBiasColumns = 128, kBiasRows = 64;

// As many tasks for each thread.
std::int64_t rows_of_a_task(std::int64_t rows, int num_threads) {
  const std::int64_t tasks = ceil_div(ceil_div(rows, kRows), num_threads) * num_threads;
  return std::min({rows, kRows, ceil_div(ceil_div(rows, tasks), kTileRows) * kTileRows});
}

int num_levels(int groups) {
  return std::bit_width(static_cast<unsigned>(groups)) - 1;
}

std::int64_t level_numel(std::int64_t rows, std::int64_t width) {
  return ceil_div(std::min(rows, kRows) * width, 16) * 16;  // multiples of 64 bytes
}

struct Part {
  std::int64_t first, count;
};
// Elements of group j in a range.
Part part_of(const DepthRange& range, int group) {
  const std::int64_t begin = std::min(group * range.of_a_group, range.count);
  const std::int64_t end = std::min((group + 1) * range.of_a_group, range.count);
  return {range.first + begin, end - begin};
}

// The tree over some rows of the result. `product` forms the product of a part of the depth, and
// adds it if asked.
class Tree {
 public:
  using Product =
      std::function<void(const Part& depth, const Tensor& c, bool add, const Tensor& workspace)>;

  Tree(ThreadTeam& team, const GroupedDepth& depth, std::int64_t level_numel,
       const Tensor& workspace, Product product)
      : team_(team), depth_(depth), product_(std::move(product)) {
    std::int64_t taken = 0;
    for (int level = 0; level < num_levels(depth.groups); ++level) {
      const std::int64_t bytes = level_numel * static_cast<std::int64_t>(sizeof(float));
      SHERD_CHECK(taken + bytes <= workspace.bytes(), "workspace of {} bytes, {} needed for a tree",
                  workspace.bytes(), taken + bytes);
      levels_.push_back({static_cast<char*>(workspace.data) + taken, DType::kF32, level_numel});
      taken += bytes;
    }
    workspace_ = {static_cast<char*>(workspace.data) + taken, DType::kU8,
                  workspace.bytes() - taken};
  }

  void sum(const Tensor& c) { sum_groups(0, depth_.groups, c); }

 private:
  void sum_groups(int first, int count, const Tensor& c) {
    if (count == 1) return sum_group(first, c);
    const int half = count / 2;
    sum_groups(first, half, c);
    const Tensor upper = levels_[static_cast<std::size_t>(num_levels(count) - 1)].part(0, c.numel);
    sum_groups(first + half, half, upper);
    add(team_, upper, c);
  }

  void sum_group(int group, const Tensor& c) {
    bool add = false;
    for (const DepthRange& range : depth_.ranges) {
      const Part part = part_of(range, group);
      if (part.count == 0) continue;
      product_(part, c, add, workspace_);
      add = true;
    }
    if (!add) fill_zero(team_, c);
  }

  ThreadTeam& team_;
  const GroupedDepth& depth_;
  Product product_;
  std::vector<Tensor> levels_;
  Tensor workspace_;
};

const void* at(const ConstTensor& tensor, std::int64_t element) {
  return static_cast<const char*>(tensor.data) +
         element * static_cast<std::int64_t>(size_of(tensor.dtype));
}

// One of the products: `a` and `b` give what a part of the depth is multiplied of, from a row on.
template <class Left, class Right>
void sum_rows(ThreadTeam& team, const GroupedDepth& depth, std::int64_t rows, std::int64_t width,
              DType dtype, const Left& a, const Right& b, const Tensor& sum,
              const Tensor& workspace) {
  const std::int64_t most = rows_of_a_task(rows, team.num_threads());
  const std::int64_t bytes = workspace.bytes() / team.num_threads() / 64 * 64;
  team.parallel_for(ceil_div(rows, most), [&](std::int64_t task, int thread) {
    ThreadTeam alone(1);
    const std::int64_t row = task * most, count = std::min(most, rows - row);
    const Tensor own{static_cast<char*>(workspace.data) + thread * bytes, DType::kU8, bytes};
    Tree tree(alone, depth, level_numel(most, width), own,
              [&](const Part& part, const Tensor& c, bool add, const Tensor& rest) {
                matmul(alone,
                       {.rows = count,
                        .columns = width,
                        .depth = part.count,
                        .dtype = dtype,
                        .a = a(row, part.first),
                        .b = b(part.first),
                        .c = c,
                        .add = add},
                       rest);
              });
    tree.sum(sum.part(row * width, count * width));
  });
}

// Some columns of dbias. A group's tokens in a sequence are added within blocks, then the blocks.
template <class T>
class BiasTree {
 public:
  BiasTree(const GroupedBackwardWeight& args, std::int64_t first, std::int64_t columns)
      : groups_(args.tokens),
        dy_(args.dy.as<T>() + first),
        stride_(args.shape.outputs),
        columns_(columns) {}

  void sum(int first, int count, float* total) const {
    std::fill_n(total, columns_, 0.0f);
    if (count == 1) return sum_group(first, total);
    const int half = count / 2;
    float upper[kBiasColumns];
    sum(first, half, total);
    sum(first + half, half, upper);
#pragma omp simd
    for (std::int64_t j = 0; j < columns_; ++j) total[j] += upper[j];
  }

 private:
  void sum_group(int group, float* total) const {
    for (std::int64_t sequence = 0; sequence < groups_.sequences; ++sequence) {
      const std::int64_t begin = sequence * groups_.positions + groups_.first(group);
      const std::int64_t end = begin + groups_.count(group);
      for (std::int64_t t = begin; t < end; t += kBiasRows) {
        float row[kBiasColumns], block[kBiasColumns] = {};
        for (std::int64_t i = t; i < std::min(end, t + kBiasRows); ++i) {
          widen(dy_ + i * stride_, row, columns_);
#pragma omp simd
          for (std::int64_t j = 0; j < columns_; ++j) block[j] += row[j];
        }
#pragma omp simd
        for (std::int64_t j = 0; j < columns_; ++j) total[j] += block[j];
      }
    }
  }

  const TokenGroups& groups_;
  const T* dy_;
  std::int64_t stride_, columns_;
};

}  // namespace

void grouped_forward(ThreadTeam& team, const GroupedForward& args) {
  const auto [T, I, O] = args.shape;
  const std::int64_t inputs = I;
  sum_rows(
      team, args.depth, T, O, args.x.dtype,
      [&](std::int64_t row, std::int64_t first) {
        return MatmulOperand{at(args.x, row * inputs + first), inputs, false};
      },
      [&](std::int64_t first) {
        return MatmulOperand{at(args.w, first), inputs, true};
      },
      args.sum, args.workspace);
}

void grouped_backward_input(ThreadTeam& team, const GroupedBackwardInput& args) {
  const auto [T, I, O] = args.shape;
  const std::int64_t inputs = I, outputs = O;
  sum_rows(
      team, args.depth, T, I, args.dy.dtype,
      [&](std::int64_t row, std::int64_t first) {
        return MatmulOperand{at(args.dy, row * outputs + first), outputs, false};
      },
      [&](std::int64_t first) {
        return MatmulOperand{at(args.w, first * inputs), inputs, false};
      },
      args.sum, args.workspace);
}

void grouped_backward_weight(ThreadTeam& team, const GroupedBackwardWeight& args) {
  const auto [T, I, O] = args.shape;
  const std::int64_t inputs = I, outputs = O, positions = args.tokens.positions;
  const std::int64_t after = std::max<std::int64_t>(0, args.x_positions - positions);
  GroupedDepth depth{.groups = args.tokens.groups, .ranges = {}};
  for (std::int64_t i = 0; i < args.tokens.sequences; ++i) {
    depth.ranges.push_back({i * positions, positions, args.tokens.of_a_group});
  }
  sum_rows(
      team, depth, O, I, args.dy.dtype,
      [&](std::int64_t row, std::int64_t first) {
        return MatmulOperand{at(args.dy, first * outputs + row), outputs, true};
      },
      [&](std::int64_t first) {
        return MatmulOperand{at(args.x, (first + first / positions * after) * inputs), inputs,
                             false};
      },
      args.dw, args.workspace);
  if (!args.dbias) return;
  dispatch_float(args.dy.dtype, [&]<class Dy>(Dy) {
    team.parallel_for(ceil_div(outputs, kBiasColumns), [&](std::int64_t task, int) {
      const std::int64_t first = task * kBiasColumns;
      const BiasTree<Dy> tree(args, first, std::min(kBiasColumns, outputs - first));
      float total[kBiasColumns];
      tree.sum(0, args.tokens.groups, total);
      std::copy_n(total, std::min(kBiasColumns, outputs - first), args.dbias.as<float>() + first);
    });
  });
}

void add_bias(ThreadTeam& team, const GroupedFinish& args) {
  dispatch_float(args.y.dtype, [&]<class T>(T) {
    parallel_rows(team, args.tokens, args.width, [&](std::int64_t t) {
      const float* sum = args.sum.as<float>() + t * args.width;
      T* y = args.y.as<T>() + t * args.width;
      for_each_block(0, args.width, [&](std::int64_t first, int count) {
        BlockScratch bias_scratch, out;
        const float* bias = load_block(args.bias.as<T>() + first, count, bias_scratch);
        float* total = block_target(y + first, out);
#pragma omp simd
        for (int i = 0; i < count; ++i) total[i] = sum[first + i] + bias[i];
        store_block(y + first, count, out);
      });
    });
  });
}

std::int64_t grouped_linear_workspace_bytes(std::int64_t rows, std::int64_t width,
                                            std::int64_t depth, int groups) {
  const std::int64_t most = std::min(rows, kRows);
  const std::int64_t levels =
      num_levels(groups) * level_numel(most, width) * static_cast<std::int64_t>(sizeof(float));
  return levels + ceil_div(matmul_workspace_bytes(most, width, depth, DType::kF32, true), 64) * 64;
}

}  // namespace sherd::kernels::cpu
