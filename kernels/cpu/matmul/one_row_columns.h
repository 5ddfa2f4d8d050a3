/// The innermost part of a matmul of one row (one_row.h): sixteen columns of b, one piece of the depth.
///
/// Instruction sets may have forms of their own, in folders of their names; all give the same bits.
#pragma once

#include <algorithm>
#include <cstdint>

#include "core/dtype.h"

namespace sherd::kernels::cpu {

inline constexpr std::int64_t kOneRowColumns =
    16;  // at a time: two chains hide the latency of multiply-adds

/// What the columns' sums are made of, and what is fetched meanwhile: the processor sees no pattern in sixteen columns.
template <class T>
struct ColumnsOfOneRow {
  const T* column[kOneRowColumns] = {};  ///< each with `depth` elements one after another
  std::int64_t depth = 0;
  const float* a = nullptr;  ///< the row's units, `units` of them (pack_forms.h)
  std::int64_t units = 0;
  std::int64_t then = 0;  ///< in elements: what lies so far from the columns comes next; 0: nothing
  bool is_first = false;  ///< a task's first columns: not prefetched

  static constexpr std::int64_t kPerLine = 64 / static_cast<std::int64_t>(sizeof(T));

  // GCC drops calls to functions that only fetch, unless it has put them in their place before.
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
      8;  // of each column: 8 KiB, of any first cache a quarter at most

  // Into the first cache alone: nothing is read twice.
  [[gnu::always_inline]] void fetch(std::int64_t k) const {
    constexpr int kOnce = 0;
    for (const T* x : column) __builtin_prefetch(x + k, 0, kOnce);
  }
};

/// The same for sixteen interleaved columns (kernels/interleaved.h), which the processor reads as one stream. At the end of
/// a piece of the depth the stream breaks off, and the caller says where it continues.
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
  // 8 KiB: what arrives at 40 GB/s a core was asked for 200 ns before.
  static constexpr std::int64_t kUnitsAhead = 128;
};

using AddColumnsOfFloats = void (*)(const ColumnsOfOneRow<float>&, float* sums);
using AddInterleaved = void (*)(const InterleavedColumns&, float* sums);
using AddColumnsOfPairs = void (*)(const ColumnsOfOneRow<BFloat16>&, float* sums);

/// sums[j] = the chain of column j's units and a's: of products, of dot products of pairs. Null where they aren't
/// compiled.
AddColumnsOfFloats avx512_one_row();
AddColumnsOfPairs avx512_bf16_one_row();
AddInterleaved avx512_interleaved_one_row();
AddInterleaved avx512_bf16_interleaved_one_row();

}  // namespace sherd::kernels::cpu
