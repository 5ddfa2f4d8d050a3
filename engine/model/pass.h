/// One forward, or forward and backward, of one micro-batch.
#pragma once

#include "core/tensor.h"
#include "kernels/documents.h"

namespace sherd::model {

/// What one pass over one micro-batch is about.
struct Pass {
  ConstTensor inputs, targets;     ///< i32 [T]
  kernels::Documents documents{};  ///< empty: each row is one
  bool training = false;           ///< dropout on
  std::uint64_t seed = 0;          ///< of dropout
  std::uint32_t step = 0;
  std::int64_t first_row = 0;       ///< of the global batch: where this micro-batch begins
  std::int64_t first_position = 0;  ///< with a cache: how many positions it holds already
  /// Loss scale / tokens of the whole step, over all ranks, that have a target.
  float gradient_scale = 1.0f;
};

}  // namespace sherd::model
