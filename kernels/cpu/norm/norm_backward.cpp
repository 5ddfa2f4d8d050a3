#include <cstring>
#include <vector>

#include "kernels/cpu/norm/norm.h"
#include "kernels/cpu/norm/norm_rows.h"
#include "kernels/cpu/pointwise.h"
#include "kernels/dispatch_float.h"

// The gradients of weight and bias are sums over all rows: a block's rows are added in order into
// its own two rows of the workspace [blocks][2][D], and the blocks are added in order at the end.

namespace sherd::kernels::cpu {
namespace {

template <class T>
void differentiate_row(const NormBackward& args, std::int64_t row, float* dweight, float* dbias) {
  const NormShape& shape = args.shape;
  const std::int64_t at = row * shape.width;
  const T* r = args.residual.as<T>() + at;
  const T* dy = args.dy.as<T>() + at;
  const T* weight = args.weight.as<T>();
  const bool centred = shape.kind == NormKind::kLayerNorm;
  const RowStatistics statistics{centred ? args.mean.as<float>()[row] : 0.0f,
                                 args.rstd.as<float>()[row]};
  const RowMeans means = reduce_row(shape, statistics, r, dy, weight, dweight, dbias);
  T* d_in = args.d_residual_in.as<T>() + at;
  for_each_block(0, shape.width, [&](std::int64_t first, int count) {
    BlockScratch dr_scratch;
    const T* after =
        args.d_residual_out ? args.d_residual_out.as<T>() + at + first : static_cast<T*>(nullptr);
    float* dr = block_target(d_in + first, dr_scratch);
    differentiate_block(shape, means, r + first, dy + first, weight + first, after, count, dr);
    if (args.d_branch) {
      dropout_backward_block(dr, args.branch_dropout, args.branch_scale, at + first, count,
                             args.d_branch.as<T>() + at + first);
    }
    store_block(d_in + first, count, dr_scratch);
  });
}

template <class T>
void sum_rows(ThreadTeam& team, const float* partial, std::int64_t blocks, std::int64_t stride,
              std::int64_t width, bool add_to_output, T* out) {
  team.parallel_for((width + kBlock - 1) / kBlock, [&](std::int64_t task, int) {
    const std::int64_t first = task * kBlock;
    const int count = static_cast<int>(std::min<std::int64_t>(kBlock, width - first));
    BlockScratch sum, old_scratch, out_scratch;
    std::memset(&sum, 0, sizeof sum);
    for (std::int64_t block = 0; block < blocks; ++block) {
      const float* x = partial + block * stride + first;
#pragma omp simd
      for (int i = 0; i < count; ++i) sum.value[i] += x[i];
    }
    const float* old = load_block(out + first, count, old_scratch);
    float* target = block_target(out + first, out_scratch);
#pragma omp simd
    for (int i = 0; i < count; ++i) {
      target[i] = add_to_output ? old[i] + sum.value[i] : sum.value[i];
    }
    store_block(out + first, count, out_scratch);
  });
}

}  // namespace

void sum_partials(ThreadTeam& team, const float* partial, std::int64_t blocks, std::int64_t stride,
                  bool add_to_output, Tensor out) {
  dispatch_float(out.dtype, [&]<class T>(T) {
    sum_rows(team, partial, blocks, stride, out.numel, add_to_output, out.as<T>());
  });
}

void sum_blocks(ThreadTeam& team, float* partial, const BlocksOfTokens& blocks, std::int64_t stride,
                bool add_to_output, const Tensor& out) {
  if (blocks.num_groups() == 1) {
    return sum_partials(team, partial, blocks.count(), stride, add_to_output, out);
  }
  std::vector<ConstTensor> groups;
  for (int group = 0; group < blocks.num_groups(); ++group) {
    float* first = partial + group * blocks.of_a_group() * stride;
    const Tensor sum{first, DType::kF32, out.numel};
    sum_partials(team, first, blocks.of_a_group(), stride, false, sum);
    groups.emplace_back(sum);
  }
  sum_as_trees(groups.data(), blocks.num_groups(), blocks.num_groups(), out, add_to_output);
}

std::int64_t norm_backward_workspace_bytes(const NormShape& most) {
  return BlocksOfTokens::most(most.groups, most.tokens) * 2 * most.width *
         static_cast<std::int64_t>(sizeof(float));
}

void norm_backward(ThreadTeam& team, const NormBackward& args) {
  const std::int64_t width = args.shape.width;
  const BlocksOfTokens blocks(args.shape.groups, args.shape.tokens);
  auto* workspace = static_cast<float*>(args.workspace.data);
  dispatch_float(args.dy.dtype, [&]<class T>(T) {
    team.parallel_for(blocks.count(), [&](std::int64_t block, int) {
      float* dweight = workspace + block * 2 * width;
      std::memset(dweight, 0, static_cast<std::size_t>(2 * width) * sizeof(float));
      blocks.for_each_token(block, [&](std::int64_t token) {
        differentiate_row<T>(args, token, dweight, dweight + width);
      });
    });
  });
  const bool add = args.add_to_weight_gradients;
  sum_blocks(team, workspace, blocks, 2 * width, add, args.dweight);
  if (args.dbias) sum_blocks(team, workspace + width, blocks, 2 * width, add, args.dbias);
}

}  // namespace sherd::kernels::cpu
