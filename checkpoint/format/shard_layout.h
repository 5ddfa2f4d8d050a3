/// Where a rank's pieces of state are placed in its shard: per kind, one after the other, without
/// gaps.
#pragma once

#include <vector>

#include "checkpoint/format/manifest.h"
#include "core/tensor.h"
#include "sharding/state/state.h"

namespace sherd::checkpoint {

struct ShardLayout {
  ShardInfo info;                    ///< datasets (offsets and checksums not set yet) and pieces
  std::vector<ConstTensor> sources;  ///< the memory of each of info.pieces
};

/// Kinds come in the order of `state.tensors`, pieces of a kind by tensor and first element. Kinds
/// and pieces without elements are left out. All tensors of a kind have one type (SHERD_CHECK).
ShardLayout lay_out_shard(const sharding::State& state);

/// "exp_avg of block.3.up.weight, element 17": the state at an element of a dataset.
std::string place_name(const ShardInfo& shard, const std::vector<sharding::StateTensor>& tensors,
                       const std::string& kind, std::int64_t element);

}  // namespace sherd::checkpoint
