/// A part of a model, on a rank of a pipeline: how much room it has, and where a micro-batch stands in it.
#pragma once

#include <cstdint>
#include <vector>

#include "core/dtype.h"

namespace sherd::model {

/// What a rank of a pipeline computes of a model, and how much of what is kept it has room for.
struct ModelPart {
  bool embedding = true, head = true;
  int num_residuals = 0;  ///< of the residual stream, [T, D] each
  int num_kept =
      0;  ///< sets of what a block's sites keep; with `full` recompute one serves all forwards
  int num_waiting = 0;  ///< blocks that wait for their weight gradients at a time
  DType gradients = DType::kF32;
};

/// Where a micro-batch of consecutive blocks stands, as numbers of slots in Activations: the residual stream
/// before each of them and behind the last, and what each one's sites keep.
struct Standing {
  static constexpr int kElsewhere = -1;  ///< `write_output_to` says where
  std::int64_t first_block = 0;
  std::vector<int> residuals;
  std::vector<int> kept;
  std::vector<int>
      waiting{};  ///< of each block, where its weight gradients will wait; empty: they don't
};

}  // namespace sherd::model
