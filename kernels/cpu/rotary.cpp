#include "kernels/cpu/rotary.h"

#include <algorithm>
#include <cmath>

#include "kernels/cpu/blocks.h"
#include "kernels/dispatch_float.h"

namespace sherd::kernels::cpu {
namespace {

/// Turns `half` pairs (low[j], low[half + j]) by the angles whose cosines and sines are given.
template <class T>
void rotate_head(T* low, std::int64_t half, const float* cosine, const float* sine, float sign) {
  T* high = low + half;
  for_each_block(0, half, [=](std::int64_t first, int count) {
    BlockScratch a_scratch, b_scratch, low_scratch, high_scratch;
    const float* a = load_block(low + first, count, a_scratch);
    const float* b = load_block(high + first, count, b_scratch);
    float* turned_a = block_target(low + first, low_scratch);
    float* turned_b = block_target(high + first, high_scratch);
    const float* c = cosine + first;
    const float* s = sine + first;
#pragma omp simd
    for (int i = 0; i < count; ++i) {
      const float x = a[i], y = b[i], turn = sign * s[i];
      turned_a[i] = x * c[i] - y * turn;
      turned_b[i] = y * c[i] + x * turn;
    }
    store_block(low + first, count, low_scratch);
    store_block(high + first, count, high_scratch);
  });
}

template <class T>
void rotate(ThreadTeam& team, const Rotary& args) {
  const std::int64_t width = args.head_width, half = width / 2;
  const std::int64_t rotated_heads = args.query_heads + (args.queries_only ? 0 : args.kv_heads);
  const std::int64_t row_width = (args.query_heads + 2 * args.kv_heads) * width;
  const float sign = args.inverse ? -1.0f : 1.0f;
  T* qkv = args.qkv.as<T>();
  const auto* table = args.table.as<float>();
  const auto* token_positions = args.token_positions.as<std::int32_t>();
  parallel_rows(team, args.sequences * args.positions, row_width, [=, &args](std::int64_t row) {
    const float* cosine =
        table + (token_positions ? token_positions[row] : row % args.positions) * width;
    for (std::int64_t head = 0; head < rotated_heads; ++head) {
      rotate_head(qkv + row * row_width + head * width, half, cosine, cosine + half, sign);
    }
  });
}

}  // namespace

void rotary_table(ThreadTeam& team, Tensor table, std::int64_t positions,
                  const std::vector<double>& frequencies, double factor) {
  const std::int64_t half = std::ssize(frequencies);
  auto* values = table.as<float>();
  parallel_rows(team, positions, 2 * half, [&](std::int64_t position) {
    float* row = values + position * 2 * half;
    for (std::int64_t j = 0; j < half; ++j) {
      const double frequency = frequencies[static_cast<std::size_t>(j)];
      const double angle = static_cast<double>(position) * frequency;
      const double length = frequency == 0.0 ? 1.0 : factor;  // pairs that aren't turned stay
      row[j] = static_cast<float>(length * std::cos(angle));
      row[half + j] = static_cast<float>(length * std::sin(angle));
    }
  });
}

void query_growth_table(ThreadTeam& team, Tensor table, std::int64_t positions,
                        std::int64_t head_width, const RotaryFrequencies& growth) {
  auto* values = table.as<float>();
  parallel_rows(team, positions, head_width, [&](std::int64_t position) {
    const auto steps = static_cast<double>((position + 1) / growth.query_step);
    float* row = values + position * head_width;
    std::fill_n(row, head_width / 2,
                static_cast<float>(1.0 + growth.query_growth * std::log1p(steps)));
    std::fill_n(row + head_width / 2, head_width / 2, 0.0f);
  });
}

void rotary(ThreadTeam& team, const Rotary& args) {
  dispatch_float(args.qkv.dtype, [&]<class T>(T) { rotate<T>(team, args); });
}

}  // namespace sherd::kernels::cpu
