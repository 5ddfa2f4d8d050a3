/// Element-wise work over flat buffers: the team shares chunks, and each chunk has blocks of at
/// most 256 elements, which are used as floats whatever their storage type.
///
/// Blocks are the unit of conversion: 16-bit elements are widened into a small array on the stack,
/// computed on, and rounded back; float blocks are used in place.
#pragma once

#include <algorithm>
#include <cstdint>

#include "core/thread_team.h"
#include "kernels/cpu/convert.h"

namespace sherd::kernels::cpu {

inline constexpr std::int64_t kChunk = 16384;  ///< elements of one task
inline constexpr int kBlock = 256;             ///< elements of one block

/// Room for one block as floats; left untouched for float storage.
struct BlockScratch {
  alignas(64) float value[kBlock];
};

/// The block [x, x + count) as floats: `x` itself or a copy in `scratch`.
inline const float* load_block(const float* x, int /*count*/, BlockScratch& /*scratch*/) {
  return x;
}
template <class T>
const float* load_block(const T* x, int count, BlockScratch& scratch) {
  widen(x, scratch.value, count);
  return scratch.value;
}

/// Where the floats of a block that will be stored at `y` are to be written.
inline float* block_target(float* y, BlockScratch& /*scratch*/) {
  return y;
}
template <class T>
float* block_target(T* /*y*/, BlockScratch& scratch) {
  return scratch.value;
}

/// Rounds the floats written to `block_target(y, scratch)` into their place at `y`.
inline void store_block(float* /*y*/, int /*count*/, const BlockScratch& /*scratch*/) {}
inline void store_block(BFloat16* y, int count, const BlockScratch& scratch) {
  // Through `bits`: GCC doesn't vectorise the assignment of the class.
#pragma omp simd
  for (int i = 0; i < count; ++i) y[i].bits = BFloat16(scratch.value[i]).bits;
}
template <class T>
void store_block(T* y, int count, const BlockScratch& scratch) {
  narrow(scratch.value, y, count);
}

/// Calls `function(first, count)` for the blocks of [begin, end), in order.
template <class Function>
void for_each_block(std::int64_t begin, std::int64_t end, Function&& function) {
  for (std::int64_t first = begin; first < end; first += kBlock) {
    function(first, static_cast<int>(std::min<std::int64_t>(kBlock, end - first)));
  }
}

/// Calls `function(first, count)` for the blocks of [0, numel), in tasks of `kChunk` elements.
template <class Function>
void parallel_blocks(ThreadTeam& team, std::int64_t numel, Function&& function) {
  team.parallel_for((numel + kChunk - 1) / kChunk, [&](std::int64_t task, int) {
    for_each_block(task * kChunk, std::min(numel, (task + 1) * kChunk), function);
  });
}

/// Calls `function(row)` for every row, in tasks of about `kChunk` elements.
template <class Function>
void parallel_rows(ThreadTeam& team, std::int64_t rows, std::int64_t width, Function&& function) {
  const std::int64_t rows_per_task =
      std::max<std::int64_t>(1, kChunk / std::max<std::int64_t>(1, width));
  team.parallel_for((rows + rows_per_task - 1) / rows_per_task, [&](std::int64_t task, int) {
    const std::int64_t end = std::min(rows, (task + 1) * rows_per_task);
    for (std::int64_t row = task * rows_per_task; row < end; ++row) function(row);
  });
}

}  // namespace sherd::kernels::cpu
