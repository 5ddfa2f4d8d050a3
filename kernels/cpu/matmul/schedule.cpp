#include "kernels/cpu/matmul/schedule.h"

#include <algorithm>

namespace sherd::kernels::cpu {
namespace {

// A block is packed while half of the groups of the block before remain. With fewer groups, threads
// would wait there for the block before that.
constexpr std::int64_t kGroupsPerThread = 2;

}  // namespace

MatmulTask MatmulSchedule::task(std::int64_t i) const {
  if (i < packs_) return {true, 0, i};
  const std::int64_t of_block = packs_ + groups_;
  // Nothing is packed after the last block's groups, so they end the list.
  const std::int64_t block = std::min((i - packs_) / of_block, blocks_ - 1);
  const std::int64_t part = i - begin_of_groups(block);
  if (part < half_ || block + 1 == blocks_) return {false, block, part};
  if (part < half_ + packs_) return {true, block + 1, part - half_};
  return {false, block, part - packs_};
}

std::int64_t MatmulSchedule::needs(const MatmulTask& task, Before before) const {
  const std::int64_t block = task.block;
  // Those who read the buffer before: the block before the last one's groups.
  if (task.packs) return block < 2 ? 0 : begin_of_groups(block - 1);
  const std::int64_t packed = end_of_packing(block);
  switch (before) {
    case Before::kNothing:
      return packed;
    case Before::kSameGroup:
      return std::max(packed, end_of_group(block - 1, task.part));
    case Before::kAll:
      break;
  }
  return begin_of_groups(block);
}

std::int64_t MatmulSchedule::end_of_packing(std::int64_t block) const {
  return block == 0 ? packs_ : begin_of_groups(block - 1) + half_ + packs_;
}

// Of a block that isn't the last one.
std::int64_t MatmulSchedule::end_of_group(std::int64_t block, std::int64_t group) const {
  return begin_of_groups(block) + group + 1 + (group >= half_ ? packs_ : 0);
}

RowGroups::RowGroups(std::int64_t tiles, std::int64_t most, std::int64_t threads) {
  if (threads > 1) {
    most = std::clamp<std::int64_t>(tiles / (kGroupsPerThread * threads), 1, most);
    tail_ = std::min(tiles / 4, threads * most);
  }
  small_ = std::max<std::int64_t>(1, most / 3);
  front_ = tiles - tail_;
  num_front_ = std::min(front_, ceil_div(ceil_div(front_, most), threads) * threads);
}

std::int64_t RowGroups::begin(std::int64_t group) const {
  if (group <= num_front_) return front_ * group / num_front_;
  return front_ + std::min(tail_, (group - num_front_) * small_);
}

}  // namespace sherd::kernels::cpu
