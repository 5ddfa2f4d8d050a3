// The workspace: for each level of the tree the sum of an upper half, of some rows; behind them the matmul's.
#include "kernels/cpu/grouped_linear.h"

#include <algorithm>
#include <bit>
#include <functional>

#include "kernels/cpu/blocks.h"
#include "kernels/cpu/matmul/matmul.h"
#include "kernels/cpu/pointwise.h"
#include "kernels/dispatch_float.h"

namespace sherd::kernels::cpu {
namespace {

// Rows of the result at a time: the sums of all levels stay in the cache, and a matrix isn't packed too often.
constexpr std::int64_t kRows = 256;

int num_levels(int groups) {
  return std::bit_width(static_cast<unsigned>(groups)) - 1;
}

std::int64_t level_numel(std::int64_t tokens, std::int64_t width) {
  return (std::min(tokens, kRows) * width + 15) / 16 * 16;  // multiples of 64 bytes
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

// The tree over some rows of the result. `product` forms the product of a part of the depth, and adds it if asked.
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
      CHECK(taken + bytes <= workspace.bytes(), "workspace of {} bytes, {} needed for a tree",
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

// Both products, rows of the result after rows: `a` [T, L] times what `b` gives of a part of the depth.
template <class Operand>
void sum_rows(ThreadTeam& team, const GroupedDepth& depth, std::int64_t tokens, std::int64_t width,
              const ConstTensor& a, std::int64_t a_stride, const Operand& b, const Tensor& sum,
              const Tensor& workspace) {
  for (std::int64_t row = 0; row < tokens; row += kRows) {
    const std::int64_t count = std::min(kRows, tokens - row);
    Tree tree(team, depth, level_numel(tokens, width), workspace,
              [&](const Part& part, const Tensor& c, bool add, const Tensor& rest) {
                matmul(team,
                       {.rows = count,
                        .columns = width,
                        .depth = part.count,
                        .dtype = a.dtype,
                        .a = {at(a, row * a_stride + part.first), a_stride, false},
                        .b = b(part.first),
                        .c = c,
                        .add = add},
                       rest);
              });
    tree.sum(sum.part(row * width, count * width));
  }
}

}  // namespace

void grouped_forward(ThreadTeam& team, const GroupedForward& args) {
  const auto [T, I, O] = args.shape;
  sum_rows(
      team, args.depth, T, O, args.x, I,
      [&, I = I](std::int64_t first) {
        return MatmulOperand{at(args.w, first), I, true};
      },
      args.sum, args.workspace);
}

void grouped_backward_input(ThreadTeam& team, const GroupedBackwardInput& args) {
  const auto [T, I, O] = args.shape;
  sum_rows(
      team, args.depth, T, I, args.dy, O,
      [&, I = I](std::int64_t first) {
        return MatmulOperand{at(args.w, first * I), I, false};
      },
      args.sum, args.workspace);
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

std::int64_t grouped_linear_workspace_bytes(std::int64_t tokens, std::int64_t width,
                                            std::int64_t depth, int groups) {
  const std::int64_t rows = std::min(tokens, kRows);
  const std::int64_t levels =
      num_levels(groups) * level_numel(rows, width) * static_cast<std::int64_t>(sizeof(float));
  return levels + matmul_workspace_bytes(rows, width, depth, DType::kF32);
}

}  // namespace sherd::kernels::cpu
