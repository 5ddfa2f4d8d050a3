/// Which products of experts are grouped on a GPU, and how many rows a launch has
/// (kernels/cuda/grouped_products.h). Host code, for the launches and for the ledger of them.
#pragma once

#include <algorithm>
#include <span>
#include <vector>

#include "kernels/expert_pieces.h"

namespace sherd::kernels::device_common {

inline constexpr std::int64_t kMostGroups = 768;  ///< experts: as many as a GPU routes

/// cuDNN has plans for grouped products of 16-bit matrices. Rows are aligned to 16 bytes.
inline bool groups_products(const ExpertsShape& shape, DType dtype) {
  constexpr std::int64_t kPack = 8;
  return shape.grouped && size_of(dtype) == 2 && shape.width % kPack == 0 &&
         shape.ffn_width % kPack == 0;
}

/// Rows [first, first + count) of the buffer belong to experts. A launch computes `rows` of them,
/// `count` or more.
struct GroupedRows {
  std::int64_t first = 0, count = 0, rows = 0;
};

/// The sizes that launches have: 1, 2, 3, 4, 6, 8, 12, 16, 24, ... Each needs a plan, so there are
/// few of them. At most a third of a launch's rows are computed for nothing.
inline std::int64_t least_grouped_rows(std::int64_t count) {
  std::int64_t power = 1;
  while (power < count) power *= 2;
  return power >= 4 && power / 4 * 3 >= count ? power / 4 * 3 : power;
}
inline std::int64_t most_grouped_rows(std::int64_t count) {
  const std::int64_t least = least_grouped_rows(count);
  if (least == count || count == 1) return count;
  return least_grouped_rows(least / 2 + 1);
}

/// Calls `each(runs, rows)` for the launches of one product, in order. A launch needs experts to
/// ascend, so each source's runs have launches of their own. Rows that one of them computes for
/// nothing are computed again by the next or belong to nobody. `buffer_rows` is the end of the
/// buffer, which no launch crosses.
template <class Each>
void for_each_grouped_launch(const std::vector<ExpertRun>& runs, std::int64_t buffer_first,
                             std::int64_t buffer_rows, const Each& each) {
  for (std::size_t begin = 0; begin < runs.size();) {
    std::size_t end = begin + 1;
    while (end < runs.size() && runs[end].expert > runs[end - 1].expert) ++end;
    const std::span<const ExpertRun> group(runs.data() + begin, end - begin);
    std::int64_t first = group.front().rows.first - buffer_first;
    const std::int64_t last = group.back().rows.first + group.back().rows.count - buffer_first;
    while (first < last) {
      GroupedRows rows{first, last - first, least_grouped_rows(last - first)};
      if (first + rows.rows > buffer_rows) {
        rows.count = rows.rows = most_grouped_rows(last - first);
      }
      each(group, rows);
      first += rows.count;
    }
    begin = end;
  }
}

/// Where each expert's rows begin, from a launch's first row; those of an expert without rows at
/// the next one's. The last expert's end with the launch.
struct GroupOffsets {
  std::int32_t begin[kMostGroups];
};
inline GroupOffsets group_offsets(std::span<const ExpertRun> runs, const GroupedRows& rows,
                                  std::int64_t buffer_first, std::int64_t experts) {
  SHERD_CHECK(experts <= kMostGroups, "grouped products of {} experts", experts);
  GroupOffsets offsets{};
  std::int64_t expert = 0;
  for (const ExpertRun& run : runs) {
    const std::int64_t begin =
        std::clamp<std::int64_t>(run.rows.first - buffer_first - rows.first, 0, rows.count);
    for (; expert <= run.expert; ++expert) {
      offsets.begin[expert] = static_cast<std::int32_t>(begin);
    }
  }
  for (; expert < experts; ++expert) {
    offsets.begin[expert] = static_cast<std::int32_t>(rows.count);
  }
  return offsets;
}

}  // namespace sherd::kernels::device_common
