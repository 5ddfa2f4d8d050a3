/// One micro-batch of one rank: rows of tokens, and where documents lie in them.
#pragma once

#include <cstdint>

#include "core/tensor.h"

namespace sherd::data {

/// What `Batch::targets` holds where a token has no target: no loss, no gradient.
inline constexpr std::int32_t kNoTarget = -1;

/// i32, T = micro_batch_size * seq_length tokens. Empty where rows aren't made of separate documents:
/// `starts` [T + 1], `lengths` [T], `positions` [T], as in kernels/documents.h.
struct Batch {
  Tensor inputs, targets;
  Tensor starts{}, lengths{}, positions{};
};

}  // namespace sherd::data
