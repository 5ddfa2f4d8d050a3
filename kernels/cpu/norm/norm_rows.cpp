#include "kernels/cpu/norm/norm_rows.h"

#include <cmath>

#include "kernels/cpu/lane_sum.h"
#include "kernels/dispatch_float.h"

namespace sherd::kernels::cpu {
namespace {

// The weights of a block and the norm's offset added: what multiplies xhat.
template <class T>
const float* load_weights(const T* weight, float offset, int count, BlockScratch& scratch) {
  const float* w = load_block(weight, count, scratch);
  if (offset == 0.0f) return w;
#pragma omp simd
  for (int i = 0; i < count; ++i) scratch.value[i] = w[i] + offset;
  return scratch.value;
}

}  // namespace

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
void normalise_row(const NormShape& shape, const T* weight, const T* bias, const T* r,
                   RowStatistics statistics, T* y) {
  const float mean = statistics.mean, rstd = statistics.rstd;
  for_each_block(0, shape.width, [&](std::int64_t first, int count) {
    BlockScratch r_scratch, weight_scratch, bias_scratch, y_scratch;
    const float* x = load_block(r + first, count, r_scratch);
    const float* w = load_weights(weight + first, shape.weight_offset, count, weight_scratch);
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

template <class T>
RowMeans reduce_row(const NormShape& shape, RowStatistics statistics, const T* r, const T* dy,
                    const T* weight, float* dweight, float* dbias) {
  const bool centred = shape.kind == NormKind::kLayerNorm;
  RowMeans result{statistics.mean, statistics.rstd};
  const float mean = result.mean, rstd = result.rstd;
  LaneSum sum_g, sum_g_xhat;
  for_each_block(0, shape.width, [&](std::int64_t first, int count) {
    BlockScratch r_scratch, dy_scratch, weight_scratch, g_block, g_xhat_block;
    const float* x = load_block(r + first, count, r_scratch);
    const float* d = load_block(dy + first, count, dy_scratch);
    const float* w = load_weights(weight + first, shape.weight_offset, count, weight_scratch);
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
  result.mean_g = sum_g.total() / static_cast<float>(shape.width);
  result.mean_g_xhat = sum_g_xhat.total() / static_cast<float>(shape.width);
  return result;
}

template <class T>
void differentiate_block(const NormShape& shape, const RowMeans& s, const T* r, const T* dy,
                         const T* weight, const T* after, int count, float* dr) {
  BlockScratch r_scratch, dy_scratch, weight_scratch, after_scratch;
  const float* x = load_block(r, count, r_scratch);
  const float* d = load_block(dy, count, dy_scratch);
  const float* w = load_weights(weight, shape.weight_offset, count, weight_scratch);
  const auto slope = [&](int i) {
    const float xhat = (x[i] - s.mean) * s.rstd;
    return s.rstd * (d[i] * w[i] - s.mean_g - xhat * s.mean_g_xhat);
  };
  if (after != nullptr) {
    const float* from_after = load_block(after, count, after_scratch);
#pragma omp simd
    for (int i = 0; i < count; ++i) dr[i] = from_after[i] + slope(i);
  } else {
#pragma omp simd
    for (int i = 0; i < count; ++i) dr[i] = slope(i);
  }
}

namespace {

constexpr std::int64_t kMaxRowBlocks = 64;
constexpr std::int64_t kMinRowsPerBlock = 8;

}  // namespace

std::int64_t rows_per_block(std::int64_t tokens) {
  return std::max(kMinRowsPerBlock, (tokens + kMaxRowBlocks - 1) / kMaxRowBlocks);
}
std::int64_t most_row_blocks(std::int64_t tokens) {
  return std::min(kMaxRowBlocks, (tokens + kMinRowsPerBlock - 1) / kMinRowsPerBlock);
}

namespace {

constexpr std::int64_t kMaxBlocksOfAGroup = 8;

std::int64_t rows_per_block_of_a_group(std::int64_t of_a_group) {
  return std::max(kMinRowsPerBlock, (of_a_group + kMaxBlocksOfAGroup - 1) / kMaxBlocksOfAGroup);
}

}  // namespace

BlocksOfTokens::BlocksOfTokens(const TokenGroups& groups, std::int64_t tokens) : groups_(groups) {
  if (!groups) groups_ = {.groups = 1, .of_a_group = tokens, .positions = tokens};
  rows_ = groups ? rows_per_block_of_a_group(groups.of_a_group) : rows_per_block(tokens);
  of_a_group_ = (groups_.of_a_group + rows_ - 1) / rows_;
}

std::int64_t BlocksOfTokens::most(const TokenGroups& groups, std::int64_t tokens) {
  if (!groups) return most_row_blocks(tokens);
  return groups.groups * std::min(kMaxBlocksOfAGroup,
                                  (groups.of_a_group + kMinRowsPerBlock - 1) / kMinRowsPerBlock);
}

#define SHERD_INSTANTIATE(T)                                                                      \
  template RowStatistics row_statistics(const NormShape&, const T*);                              \
  template void normalise_row(const NormShape&, const T*, const T*, const T*, RowStatistics, T*); \
  template RowMeans reduce_row(const NormShape&, RowStatistics, const T*, const T*, const T*,     \
                               float*, float*);                                                   \
  template void differentiate_block(const NormShape&, const RowMeans&, const T*, const T*,        \
                                    const T*, const T*, int, float*);
SHERD_INSTANTIATE(float)
SHERD_INSTANTIATE(BFloat16)
SHERD_INSTANTIATE(Float16)
#undef SHERD_INSTANTIATE

}  // namespace sherd::kernels::cpu
