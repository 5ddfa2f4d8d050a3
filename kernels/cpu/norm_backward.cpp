#include <cstring>

#include "kernels/cpu/blocks.h"
#include "kernels/cpu/dispatch.h"
#include "kernels/cpu/lane_sum.h"
#include "kernels/cpu/norm.h"
#include "kernels/cpu/pointwise.h"

// With xhat = (r - mean) rstd and g = dy weight, over the D elements of a row:
//
//   layernorm   d(norm)/dr . dy = rstd (g - mean(g) - xhat mean(g xhat))
//   rmsnorm     d(norm)/dr . dy = rstd (g           - xhat mean(g xhat))
//
// The gradients of weight and bias are sums over all rows. Rows are cut into blocks by T alone; a
// block's rows are added in order into its own two rows of the workspace [blocks][2][D], and the
// blocks are added in order at the end.

namespace sherd::kernels::cpu {
namespace {

constexpr std::int64_t kMaxRowBlocks = 64;
constexpr std::int64_t kMinRowsPerBlock = 8;

std::int64_t rows_per_block(std::int64_t tokens) {
  return std::max(kMinRowsPerBlock, (tokens + kMaxRowBlocks - 1) / kMaxRowBlocks);
}
std::int64_t num_row_blocks(std::int64_t tokens) {
  return (tokens + rows_per_block(tokens) - 1) / rows_per_block(tokens);
}

struct Row {
  float mean, rstd;
  float mean_g = 0.0f, mean_g_xhat = 0.0f;
};

/// Adds the row's part of dweight and dbias to the partial sums and takes the row's two means.
template <class T>
Row reduce_row(const NormBackward& args, std::int64_t row, float* dweight, float* dbias) {
  const std::int64_t width = args.shape.width;
  const T* r = args.residual.as<T>() + row * width;
  const T* dy = args.dy.as<T>() + row * width;
  const T* weight = args.weight.as<T>();
  const bool centred = args.shape.kind == NormKind::kLayerNorm;
  Row result{centred ? args.mean.as<float>()[row] : 0.0f, args.rstd.as<float>()[row]};
  const float mean = result.mean, rstd = result.rstd;
  LaneSum sum_g, sum_g_xhat;
  for_each_block(0, width, [&](std::int64_t first, int count) {
    BlockScratch r_scratch, dy_scratch, weight_scratch, g_block, g_xhat_block;
    const float* x = load_block(r + first, count, r_scratch);
    const float* d = load_block(dy + first, count, dy_scratch);
    const float* w = load_block(weight + first, count, weight_scratch);
    float* dw = dweight + first;
    float* db = dbias + first;
#pragma omp simd
    for (int i = 0; i < count; ++i) {
      const float xhat = (x[i] - mean) * rstd;
      const float g = d[i] * w[i];
      g_block.value[i] = g;
      g_xhat_block.value[i] = g * xhat;
      dw[i] += d[i] * xhat;
      db[i] += d[i];
    }
    if (centred) sum_g.add_values(g_block.value, count);
    sum_g_xhat.add_values(g_xhat_block.value, count);
  });
  result.mean_g = sum_g.total() / static_cast<float>(width);
  result.mean_g_xhat = sum_g_xhat.total() / static_cast<float>(width);
  return result;
}

template <class T>
void differentiate_row(const NormBackward& args, std::int64_t row, const Row& s) {
  const std::int64_t at = row * args.shape.width;
  const T* r = args.residual.as<T>() + at;
  const T* dy = args.dy.as<T>() + at;
  const T* weight = args.weight.as<T>();
  T* d_in = args.d_residual_in.as<T>() + at;
  for_each_block(0, args.shape.width, [&](std::int64_t first, int count) {
    BlockScratch r_scratch, dy_scratch, weight_scratch, after_scratch, dr_scratch;
    const float* x = load_block(r + first, count, r_scratch);
    const float* d = load_block(dy + first, count, dy_scratch);
    const float* w = load_block(weight + first, count, weight_scratch);
    float* dr = block_target(d_in + first, dr_scratch);
    const auto slope = [&](int i) {
      const float xhat = (x[i] - s.mean) * s.rstd;
      return s.rstd * (d[i] * w[i] - s.mean_g - xhat * s.mean_g_xhat);
    };
    if (args.d_residual_out) {
      const T* d_out = args.d_residual_out.as<T>() + at;
      const float* after = load_block(d_out + first, count, after_scratch);
#pragma omp simd
      for (int i = 0; i < count; ++i) dr[i] = after[i] + slope(i);
    } else {
#pragma omp simd
      for (int i = 0; i < count; ++i) dr[i] = slope(i);
    }
    if (args.d_branch) {
      dropout_backward_block(dr, args.branch_dropout, at + first, count,
                             args.d_branch.as<T>() + at + first);
    }
    store_block(d_in + first, count, dr_scratch);
  });
}

/// out = the sum of `blocks` partial rows, `stride` apart, plus `out` itself if asked.
template <class T>
void sum_partials(ThreadTeam& team, const float* partial, std::int64_t blocks, std::int64_t stride,
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

std::int64_t norm_backward_workspace_bytes(const NormShape& shape) {
  return num_row_blocks(shape.tokens) * 2 * shape.width * static_cast<std::int64_t>(sizeof(float));
}

void norm_backward(ThreadTeam& team, const NormBackward& args) {
  const std::int64_t tokens = args.shape.tokens, width = args.shape.width;
  const std::int64_t rows = rows_per_block(tokens), blocks = num_row_blocks(tokens);
  auto* workspace = static_cast<float*>(args.workspace.data);
  dispatch_float(args.dy.dtype, [&]<class T>(T) {
    team.parallel_for(blocks, [&](std::int64_t block, int) {
      float* dweight = workspace + block * 2 * width;
      std::memset(dweight, 0, static_cast<std::size_t>(2 * width) * sizeof(float));
      const std::int64_t end = std::min(tokens, (block + 1) * rows);
      for (std::int64_t row = block * rows; row < end; ++row) {
        differentiate_row<T>(args, row, reduce_row<T>(args, row, dweight, dweight + width));
      }
    });
  });
  const auto finish = [&](const float* partial, Tensor out) {
    dispatch_float(out.dtype, [&]<class T>(T) {
      sum_partials(team, partial, blocks, 2 * width, width, args.add_to_weight_gradients,
                   out.as<T>());
    });
  };
  finish(workspace, args.dweight);
  if (args.dbias) finish(workspace + width, args.dbias);
}

}  // namespace sherd::kernels::cpu
