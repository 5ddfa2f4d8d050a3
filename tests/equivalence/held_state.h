/// What all ranks together hold after they were saved and loaded.
#pragma once

#include <map>
#include <mutex>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "engine/saving/saver.h"
#include "tests/support/runs/training_harness.h"

namespace sherd::testing {

/// By name and kind: "block.0.up.weight/exp_avg".
using Tensors = std::map<std::string, std::vector<float>>;

/// Every tensor, put together from what all ranks hold. Trains `steps` steps and saves, or loads.
inline Tensors held_state(engine::TrainingOptions options, const std::string& directory,
                          const RunShape& setup, int steps, bool saves) {
  options = applied(std::move(options), setup);
  Tensors tensors;
  for (const auto& tensor : engine::state_tensors(options)) {
    tensors[tensor.name + "/" + tensor.kind].resize(static_cast<std::size_t>(tensor.numel()));
  }
  const engine::CheckpointOptions checkpoints{
      .directory = directory,
      .saves = saves,
      .interval = saves ? steps : 0,
      .init_from = {},
      .adapter = {},
      .max_steps = steps,
      .fingerprint = std::make_shared<const nlohmann::json>(nlohmann::json::object()),
      .recipe = {},
      .folder = {}};
  std::mutex mutex;
  run_ranks(setup, [&](sharding::Rank& rank) {
    engine::ShardedModel model(options, rank);
    engine::TrainingStep training_step(options, model);
    engine::Checkpointing checkpointing(options, checkpoints, model, training_step, {});
    engine::Saver saver(checkpointing, {});
    std::vector<std::int32_t> memory;
    const engine::NextBatch next_batch = tokens_for(options, rank, memory);
    rank.guard([&] {
      saver.clear_leftovers();
      saver.start(engine::resume(checkpointing));
      for (int step = 0; saves && step < steps; ++step) {
        training_step.run(step, next_batch);
        saver.after_step(step, {});
      }
      saver.finish();
      const auto state = engine::run_state(options, model, training_step, engine::Pieces::kHeld);
      const std::lock_guard lock(mutex);
      for (const sharding::StatePiece& piece : state.pieces) {
        const auto& tensor = state.tensors[static_cast<std::size_t>(piece.tensor)];
        std::vector<float>& whole = tensors.at(tensor.name + "/" + tensor.kind);
        for (std::int64_t i = 0; i < piece.count; ++i) {
          whole[static_cast<std::size_t>(sharding::element_of_tensor(
              tensor, piece.band, piece.first_element + i))] = piece.data.as<float>()[i];
        }
      }
    });
  });
  return tensors;
}

}  // namespace sherd::testing
