/// A part of a model, on a rank of a pipeline: its slots, and which of them a micro-batch uses.
#pragma once

#include <cstdint>
#include <vector>

#include "core/dtype.h"

namespace sherd::model {

/// The blocks that a pipeline rank computes, and its numbers of slots for kept activations.
struct ModelPart {
  bool embedding = true, head = true;
  int num_residuals = 0;  ///< slots of the residual stream, [T, D] each
  int num_kept =
      0;  ///< sets of what a block's sites keep; with `full` recompute one serves all forwards
  int num_waiting = 0;  ///< most blocks whose weight gradients wait at a time
  DType gradients = DType::kF32;
};

/// The slots in Activations that a micro-batch uses for consecutive blocks: the residual stream
/// before each of them and after the last, and what each block's sites keep.
struct Standing {
  static constexpr int kElsewhere = -1;  ///< set by `write_output_to`
  std::int64_t first_block = 0;
  std::vector<int> residuals;
  std::vector<int> kept;
  /// Per block, where its weight gradients will wait. Empty: they don't wait.
  std::vector<int> waiting{};
};

}  // namespace sherd::model
