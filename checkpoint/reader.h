/// Fills a rank's state from a checkpoint, whatever stage and world wrote it.
///
/// Every block that holds a wanted element is read once, checked, and copied from; other blocks
/// aren't read. Wanted pieces may be any ranges, and several may cover the same elements.
///
/// Memory   the given buffer (one block is enough), 40 bytes per piece in the manifest and per
///          overlap of a wanted piece with a stored one. libhdf5 isn't used.
/// Errors   DataError. Before anything is read: wanted and stored tensors differ; names the first
///          difference. While reading: a bad block, with file, bytes and tensors. Pieces filled
///          until then keep the copied data, so the caller must load another checkpoint over them
///          or stop. No byte of a bad block is ever copied.
#pragma once

#include <cstdint>

#include "checkpoint/store/committed.h"
#include "core/tensor.h"
#include "sharding/state/state.h"

namespace sherd::checkpoint {

/// Which of the checkpoint's tensors must be among the wanted ones.
enum class Match {
  kEverything,   ///< all: for a resume
  kListedKinds,  ///< all of the wanted kinds: for weights alone
  kNone,         ///< none: for a part of a model
};

/// Names the first tensor that one side lacks, or whose shape or type differs. The order of the two
/// lists doesn't matter.
void check_match(const Checkpoint& checkpoint, const std::vector<sharding::StateTensor>& wanted,
                 Match match);

struct LoadStatistics {
  std::int64_t blocks_read = 0;
  std::int64_t bytes_copied = 0;
};

/// `buffer`: u8 in host memory, at least kBlockBytes.
LoadStatistics load(const Checkpoint& checkpoint, const sharding::State& wanted, Match match,
                    Tensor buffer, const sharding::CopyState& copy = {});

}  // namespace sherd::checkpoint
