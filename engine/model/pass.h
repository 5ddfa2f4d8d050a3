/// One forward, or forward and backward, of one micro-batch.
#pragma once

#include "core/tensor.h"
#include "kernels/documents.h"

namespace sherd::model {

/// The inputs of one pass over one micro-batch.
struct Pass {
  ConstTensor inputs, targets;     ///< i32 [T]
  kernels::Documents documents{};  ///< empty: each row is one
  bool training = false;           ///< dropout on
  std::uint64_t seed = 0;          ///< for dropout
  std::uint32_t step = 0;
  std::int64_t first_row = 0;       ///< where this micro-batch begins in the global batch
  std::int64_t first_position = 0;  ///< with a cache: positions it already holds
  /// Loss scale / number of tokens with a target in the whole step, over all ranks.
  float gradient_scale = 1.0f;
};

}  // namespace sherd::model
