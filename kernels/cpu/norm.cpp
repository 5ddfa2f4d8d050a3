#include "kernels/cpu/norm.h"

#include <cmath>
#include <cstring>

#include "kernels/cpu/blocks.h"
#include "kernels/cpu/dispatch.h"
#include "kernels/cpu/lane_sum.h"
#include "kernels/cpu/pointwise.h"

namespace sherd::kernels::cpu {
namespace {

/// Writes r where the caller wants it and returns where it lies. What is normalised is r as stored,
/// rounded to T, because that is what the backward will read.
template <class T>
const T* write_residual_row(const NormForward& args, std::int64_t row) {
  const std::int64_t width = args.shape.width;
  const T* residual = args.residual.as<T>() + row * width;
  if (!args.residual_out) return residual;
  T* out = args.residual_out.as<T>() + row * width;
  if (!args.branch) {
    if (out != residual) std::memcpy(out, residual, static_cast<std::size_t>(width) * sizeof(T));
    return out;
  }
  const T* branch = args.branch.as<T>() + row * width;
  for_each_block(0, width, [&](std::int64_t first, int count) {
    residual_add_block(residual + first, branch + first, args.branch_dropout, row * width + first,
                       count, out + first);
  });
  return out;
}

// While a row is worked on, memory brings the next one: by itself it stops at what is asked for.
template <class T>
void fetch(const T* row, std::int64_t width) {
  constexpr std::int64_t kLine = 64 / sizeof(T);
  for (std::int64_t i = 0; i < width; i += kLine) __builtin_prefetch(row + i);
}

struct RowStatistics {
  float mean, rstd;
};

/// Two passes for layernorm: the sum of squared differences from the mean doesn't cancel.
template <class T>
RowStatistics row_statistics(const NormShape& shape, const T* r) {
  const auto width = static_cast<float>(shape.width);
  float mean = 0.0f;
  if (shape.kind == NormKind::kLayerNorm) {
    LaneSum sum;
    for_each_block(0, shape.width, [&](std::int64_t first, int count) {
      BlockScratch scratch;
      sum.add_values(load_block(r + first, count, scratch), count);
    });
    mean = sum.total() / width;
  }
  LaneSum squares;
  for_each_block(0, shape.width, [&](std::int64_t first, int count) {
    BlockScratch scratch;
    squares.add_squared_differences(load_block(r + first, count, scratch), mean, count);
  });
  return {mean, 1.0f / std::sqrt(squares.total() / width + shape.eps)};
}

template <class T>
void normalise_row(const NormForward& args, const T* r, RowStatistics statistics, T* y) {
  const auto [mean, rstd] = statistics;
  const T* weight = args.weight.as<T>();
  const T* bias = args.bias.as<T>();
  for_each_block(0, args.shape.width, [&](std::int64_t first, int count) {
    BlockScratch r_scratch, weight_scratch, bias_scratch, y_scratch;
    const float* x = load_block(r + first, count, r_scratch);
    const float* w = load_block(weight + first, count, weight_scratch);
    float* out = block_target(y + first, y_scratch);
    if (bias != nullptr) {
      const float* b = load_block(bias + first, count, bias_scratch);
#pragma omp simd
      for (int i = 0; i < count; ++i) out[i] = (x[i] - mean) * rstd * w[i] + b[i];
    } else {
#pragma omp simd
      for (int i = 0; i < count; ++i) out[i] = (x[i] - mean) * rstd * w[i];
    }
    store_block(y + first, count, y_scratch);
  });
}

}  // namespace

void norm_forward(ThreadTeam& team, const NormForward& args) {
  const std::int64_t width = args.shape.width;
  dispatch_float(args.residual.dtype, [&]<class T>(T) {
    parallel_rows(team, args.shape.tokens, width, [&](std::int64_t row) {
      if (row + 1 < args.shape.tokens) fetch(args.residual.as<T>() + (row + 1) * width, width);
      const T* r = write_residual_row<T>(args, row);
      const RowStatistics statistics = row_statistics(args.shape, r);
      if (args.mean) args.mean.as<float>()[row] = statistics.mean;
      args.rstd.as<float>()[row] = statistics.rstd;
      normalise_row(args, r, statistics, args.y.as<T>() + row * width);
    });
  });
}

}  // namespace sherd::kernels::cpu
