/// The CPU form of kernels/interleaved.h, and the layout of interleaved matrices.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "core/tensor.h"
#include "core/thread_team.h"
#include "kernels/interleaved.h"

namespace sherd::kernels::cpu {

inline constexpr std::int64_t kInterleaved = 16;  ///< rows side by side

/// For a row of elements of type T.
template <class T>
inline constexpr std::int64_t kPerInterleavedUnit = 4 / static_cast<std::int64_t>(sizeof(T));

/// Unit `unit` of row `row`, followed by the same unit of the next rows.
inline const std::uint32_t* interleaved_unit(const void* w, std::int64_t units, std::int64_t row,
                                             std::int64_t unit) {
  const std::int64_t group = row / kInterleaved * kInterleaved;
  return static_cast<const std::uint32_t*>(w) + group * units + unit * kInterleaved + row - group;
}

/// Elements [first, first + count) of a row, starting with a whole unit, in row order.
template <class T>
void read_interleaved(const T* w, std::int64_t inputs, std::int64_t row, std::int64_t first,
                      std::int64_t count, T* out) {
  constexpr std::int64_t kPerUnit = kPerInterleavedUnit<T>;
  const std::uint32_t* unit = interleaved_unit(w, inputs / kPerUnit, row, first / kPerUnit);
  for (std::int64_t i = 0; i < count; i += kPerUnit, unit += kInterleaved) {
    const auto whole = static_cast<std::size_t>(std::min(kPerUnit, count - i));
    std::memcpy(static_cast<void*>(out + i), unit, whole * sizeof(T));
  }
}

void interleave(ThreadTeam& team, const Tensor& w, std::int64_t inputs);

}  // namespace sherd::kernels::cpu
