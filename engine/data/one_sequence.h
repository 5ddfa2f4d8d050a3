/// Memory for one sequence, and where its documents are: what Batcher::fill writes for a batcher
/// whose micro-batches have one sequence.
#pragma once

#include <cstdint>
#include <vector>

#include "engine/data/batch.h"
#include "engine/data/batcher.h"

namespace sherd::data {

/// The same samples, one at a time, on one rank: sample i is micro-step i mod num_micro_steps of
/// step i / num_micro_steps.
inline BatchShape one_at_a_time(BatchShape shape) {
  shape.ordered = shape.parts();
  shape.num_micro_steps = shape.global_batch_size();
  shape.micro_batch_size = shape.world = shape.num_replicas = 1;
  return shape;
}

struct OneSequence {
  explicit OneSequence(std::int64_t tokens)
      : inputs(static_cast<std::size_t>(tokens)),
        targets(inputs),
        lengths(inputs),
        positions(inputs),
        starts(inputs.size() + 1) {}

  /// `separate`: documents are.
  Batch batch(bool separate) {
    const auto tensor = [](auto& ids) { return Tensor{ids.data(), DType::kI32, std::ssize(ids)}; };
    if (!separate) return {tensor(inputs), tensor(targets)};
    return {tensor(inputs), tensor(targets), tensor(starts), tensor(lengths), tensor(positions)};
  }
  struct Document {
    std::size_t first = 0, count = 0;
  };
  /// Without padding. If documents aren't separate, the sequence is one.
  std::vector<Document> documents(bool separate) const {
    if (!separate) return {{0, inputs.size()}};
    std::vector<Document> found;
    for (std::size_t i = 0; i < lengths.size() && lengths[i] > 0; ++i) {
      found.push_back({static_cast<std::size_t>(starts[i]), static_cast<std::size_t>(lengths[i])});
    }
    return found;
  }

  std::vector<std::int32_t> inputs, targets, lengths, positions, starts;
};

}  // namespace sherd::data
