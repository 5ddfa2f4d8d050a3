/// The innermost part of a matmul of one row (one_row.h): sixteen columns of b, one piece of the
/// depth.
///
/// Instruction sets may have their own forms, in folders of their names; all give bit-identical
/// results.
#pragma once

#include <algorithm>
#include <cstdint>

#include "core/dtype.h"

namespace sherd::kernels::cpu {

inline constexpr std::int64_t kOneRowColumns =
    16;  // at a time: two chains hide the latency of multiply-adds

/// The operands of the columns' sums, and prefetching: hardware prefetchers find no pattern in
/// sixteen columns.
template <class T>
struct ColumnsOfOneRow {
  const T* column[kOneRowColumns] = {};  ///< each with `depth` elements one after another
  std::int64_t depth = 0;
  const float* a = nullptr;  ///< the row's units, `units` of them (pack_forms.h)
  std::int64_t units = 0;
  std::int64_t then = 0;  ///< distance in elements to the next columns; 0: none
  bool is_first = false;  ///< a task's first columns: not prefetched

  static constexpr std::int64_t kPerLine = 64 / static_cast<std::int64_t>(sizeof(T));

  // GCC drops calls to functions that only prefetch, unless it has inlined them before.
  /// Before the loop over the depth.
  [[gnu::always_inline]] void fetch_first() const {
    if (!is_first) return;
    for (std::int64_t line = 0; line < kLinesAhead; ++line) fetch(line * kPerLine);
  }
  /// At each line of the depth.
  [[gnu::always_inline]] void fetch_next(std::int64_t k) const {
    const std::int64_t ahead = k + kLinesAhead * kPerLine;
    if (ahead < depth) {
      fetch(ahead);
    } else if (then != 0) {
      fetch(ahead - depth + then);
    }
  }

 private:
  static constexpr std::int64_t kLinesAhead =
      8;  // per column: 8 KiB in all, at most a quarter of any L1 cache

  // Into the L1 cache only: nothing is read twice.
  [[gnu::always_inline]] void fetch(std::int64_t k) const {
    constexpr int kOnce = 0;
    for (const T* x : column) __builtin_prefetch(x + k, 0, kOnce);
  }
};

/// The same for sixteen interleaved columns (kernels/interleaved.h), which the processor reads as
/// one stream. The stream ends with a piece of the depth, and the caller says where it continues.
struct InterleavedColumns {
  const std::uint32_t* words = nullptr;  ///< [count][16]
  std::int64_t count = 0;                ///< units of 32 bits of each column
  const float* a = nullptr;              ///< the row's units (pack_forms.h)
  const std::uint32_t* then = nullptr;   ///< what comes next

  /// Calls `add(unit, words)` in the order of the units.
  template <class Add>
  [[gnu::always_inline]] void for_each_unit(const Add& add) const {
    const std::int64_t here = std::max<std::int64_t>(count - kUnitsAhead, 0);
    for (std::int64_t u = 0; u < here; ++u) {
      __builtin_prefetch(words + (u + kUnitsAhead) * kOneRowColumns);
      add(u, words + u * kOneRowColumns);
    }
    for (std::int64_t u = here; u < count; ++u) {
      __builtin_prefetch(then + (u - here) * kOneRowColumns);
      add(u, words + u * kOneRowColumns);
    }
  }

 private:
  // 8 KiB: at 40 GB/s per core, data are requested 200 ns ahead.
  static constexpr std::int64_t kUnitsAhead = 128;
};

using AddColumnsOfFloats = void (*)(const ColumnsOfOneRow<float>&, float* sums);
using AddInterleaved = void (*)(const InterleavedColumns&, float* sums);
using AddColumnsOfPairs = void (*)(const ColumnsOfOneRow<BFloat16>&, float* sums);

/// sums[j] = the chain over the units of column j and of a: of products, or of dot products of
/// pairs. Null if not compiled.
AddColumnsOfFloats avx512_one_row();
AddColumnsOfPairs avx512_bf16_one_row();
AddInterleaved avx512_interleaved_one_row();
AddInterleaved avx512_bf16_interleaved_one_row();

}  // namespace sherd::kernels::cpu
