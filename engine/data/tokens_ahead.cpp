#include "engine/data/tokens_ahead.h"

namespace sherd::data {

void fill_tokens_ahead(const Batch& batch, std::int64_t seq_length) {
  const auto* inputs = batch.inputs.as<std::int32_t>();
  const auto* targets = batch.targets.as<std::int32_t>();
  const auto* positions = batch.positions ? batch.positions.as<std::int32_t>() : nullptr;
  for (std::size_t which = 0; which + 1 < batch.ahead.size(); which += 2) {
    const auto distance = static_cast<std::int64_t>(which / 2) + 1;
    auto* inputs_ahead = batch.ahead[which].as<std::int32_t>();
    auto* targets_ahead = batch.ahead[which + 1].as<std::int32_t>();
    for (std::int64_t token = 0; token < batch.inputs.numel; ++token) {
      const std::int64_t there = token + distance;
      const bool in_row = token % seq_length + distance < seq_length;
      const bool in_document =
          in_row && (positions == nullptr || positions[there] == positions[token] + distance);
      inputs_ahead[token] = in_document ? inputs[there] : inputs[token];
      targets_ahead[token] = in_document ? targets[there] : kNoTarget;
    }
  }
}

}  // namespace sherd::data
