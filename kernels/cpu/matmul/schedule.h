/// The order in which threads take the tasks of a matmul (matmul.h), and their dependencies.
///
/// The right matrix is divided into blocks. For each block, parts are packed, then groups of rows
/// are multiplied with it. The next block is packed into the other of two buffers while half of a
/// block's groups remain, so threads don't have to meet between blocks:
///
///   pack 0 | multiply 0, first half | pack 1 | multiply 0, second half | multiply 1, first half |
///   pack 2 | ...
///
/// A task's dependency is the number of leading tasks that must be done:
/// ThreadTeam::parallel_for_after.
#pragma once

#include <cstdint>

#include "kernels/cpu/round_up.h"

namespace sherd::kernels::cpu {

struct MatmulTask {
  bool packs;
  std::int64_t block, part;  ///< part: the part to pack, or the group
};

/// What a group needs from the previous block, in addition to its packed matrix.
enum class Before {
  kNothing,
  kSameGroup,  ///< whose sums it continues
  kAll,
};

class MatmulSchedule {
 public:
  /// Number of parts to pack and of groups of rows, per block.
  MatmulSchedule(std::int64_t blocks, std::int64_t packs, std::int64_t groups)
      : blocks_(blocks), packs_(packs), groups_(groups), half_((groups + 1) / 2) {}

  std::int64_t num_tasks() const { return blocks_ * (packs_ + groups_); }
  MatmulTask task(std::int64_t i) const;
  std::int64_t needs(const MatmulTask& task, Before before) const;

 private:
  std::int64_t begin_of_groups(std::int64_t block) const {
    return packs_ + block * (packs_ + groups_);
  }
  std::int64_t end_of_packing(std::int64_t block) const;
  std::int64_t end_of_group(std::int64_t block, std::int64_t group) const;

  std::int64_t blocks_, packs_, groups_, half_;
};

/// Divides the rows of a block into groups, counted in tiles: at most `most` tiles per group,
/// equally many groups per thread. With several threads, groups are smaller where that makes two
/// of them for each thread, and the last groups are a third of that size, so that all threads end
/// at about the same time.
class RowGroups {
 public:
  RowGroups(std::int64_t tiles, std::int64_t most, std::int64_t threads);

  std::int64_t count() const { return num_front_ + ceil_div(tail_, small_); }
  /// The first tile of a group; for `count()`, the number of tiles.
  std::int64_t begin(std::int64_t group) const;

 private:
  std::int64_t small_ = 1, tail_ = 0, front_, num_front_;
};

}  // namespace sherd::kernels::cpu
