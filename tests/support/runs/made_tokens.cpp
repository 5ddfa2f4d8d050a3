// The tokens of training_harness.h.

#include "engine/data/batcher.h"
#include "engine/data/tokens_ahead.h"
#include "engine/train/batch_buffers.h"
#include "tests/support/runs/training_harness.h"

namespace sherd::testing {

std::uint64_t mixed(std::uint64_t value) {  // splitmix64's finaliser
  value += 0x9e3779b97f4a7c15ull;
  value = (value ^ (value >> 30)) * 0xbf58476d1ce4e5b9ull;
  value = (value ^ (value >> 27)) * 0x94d049bb133111ebull;
  return value ^ (value >> 31);
}

std::int64_t first_row(const engine::TrainingOptions& options, const sharding::Rank& rank,
                       std::int64_t micro_step) {
  const data::BatchShape shape{.micro_batch_size = options.model.sequences,
                               .num_micro_steps = options.num_micro_steps,
                               .world = rank.data_degree(),
                               .num_replicas = rank.mesh.degree(sharding::kReplicateAxis)};
  return shape.first_row(micro_step, rank.data_index());
}

void fill_tokens(const model::ModelShape& shape, std::int64_t step, std::int64_t first_row,
                 std::int32_t* inputs, std::int32_t* targets) {
  for (std::int64_t t = 0; t < shape.tokens(); ++t) {
    const std::int64_t row = first_row + t / shape.seq_length;
    const std::int64_t position = t % shape.seq_length;
    const auto token = [&](std::int64_t at) {
      const auto address = static_cast<std::uint64_t>((step * 4096 + row) * 4096 + at);
      return static_cast<std::int32_t>(mixed(address) %
                                       static_cast<std::uint64_t>(shape.vocab_size));
    };
    inputs[t] = token(position);
    targets[t] = token(position + 1);
  }
}

engine::NextBatch tokens_for(const engine::TrainingOptions& options, const sharding::Rank& rank,
                             std::vector<std::int32_t>& memory) {
  const std::int64_t tokens = options.model.tokens();
  memory.resize(static_cast<std::size_t>((2 + 2 * options.model.mtp_layers) * tokens));
  return [&options, &rank, &memory, tokens](std::int64_t step, std::int64_t micro_step) {
    fill_tokens(options.model, step, first_row(options, rank, micro_step), memory.data(),
                memory.data() + tokens);
    const Tensor inputs{memory.data(), DType::kI32, tokens};
    const Tensor targets{memory.data() + tokens, DType::kI32, tokens};
    const engine::OwnPositions positions(options, rank);
    data::Batch batch{inputs, targets};
    for (std::int64_t i = 0; i < 2 * options.model.mtp_layers; ++i) {
      batch.ahead.push_back({memory.data() + (2 + i) * tokens, DType::kI32, tokens});
    }
    data::fill_tokens_ahead(batch, options.model.seq_length);
    positions.move_to_front(batch);
    return positions.of({.inputs = inputs,
                         .targets = targets,
                         .ahead = batch.ahead,
                         .first_row = first_row(options, rank, micro_step)});
  };
}

}  // namespace sherd::testing
