/// One micro-batch of one rank: rows of tokens, and the positions of documents in them.
#pragma once

#include <cstdint>
#include <vector>

#include "core/tensor.h"

namespace sherd::data {

/// Value in `Batch::targets` of a token without a target: no loss, no gradient.
inline constexpr std::int32_t kNoTarget = -1;

/// i32, T = micro_batch_size * seq_length tokens. `starts` [T + 1], `lengths` [T] and `positions`
/// [T] are as in kernels/documents.h; they are empty unless documents are separate.
struct Batch {
  Tensor inputs, targets;
  Tensor starts{}, lengths{}, positions{};
  /// With a teacher (kernels/teacher.h): i32 and f32 [T, K].
  Tensor teacher_ids{}, teacher_probabilities{};
  /// For multi-token prediction, i32 [T] each: for 1, 2, ... tokens ahead the inputs, then the
  /// targets (engine/data/tokens_ahead.h).
  std::vector<Tensor> ahead{};
};

}  // namespace sherd::data
