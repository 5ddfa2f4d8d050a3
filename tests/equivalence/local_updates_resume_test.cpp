// What replicas that train apart hold after they were saved and loaded, by as many replicas and by others.

#include <gtest/gtest.h>

#include <map>
#include <mutex>
#include <nlohmann/json.hpp>

#include "engine/saving/saver.h"
#include "tests/support/runs/training_harness.h"
#include "tests/support/values/temp_folder.h"

namespace sherd::testing {
namespace {

constexpr int kStepsDone = 3;

engine::TrainingOptions two_fragments() {
  engine::TrainingOptions options = tiny_training(tiny_model(true));
  options.local_updates = {.sync_every = 4, .num_fragments = 2, .fragment_sync_delay = 1};
  return options;
}

// Every tensor, put together from what all ranks hold. Trains three steps and saves, or loads.
using Tensors = std::map<std::string, std::vector<float>>;
Tensors held(const std::string& directory, const RunShape& setup, bool saves) {
  const engine::TrainingOptions options = applied(two_fragments(), setup);
  Tensors tensors;
  for (const auto& tensor : engine::state_tensors(options)) {
    tensors[tensor.name + "/" + tensor.kind].resize(static_cast<std::size_t>(tensor.numel()));
  }
  const engine::CheckpointOptions checkpoints{
      .directory = directory,
      .saves = saves,
      .interval = saves ? kStepsDone : 0,
      .init_from = {},
      .adapter = {},
      .max_steps = kStepsDone,
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
      for (int step = 0; saves && step < kStepsDone; ++step) {
        training_step.run(step, next_batch);
        saver.after_step(step, {});
      }
      saver.finish();
      const auto state = engine::run_state(options, model, training_step, engine::Pieces::kHeld);
      const std::lock_guard lock(mutex);
      for (const sharding::StatePiece& piece : state.pieces) {
        const auto& tensor = state.tensors[static_cast<std::size_t>(piece.tensor)];
        std::copy_n(piece.data.as<float>(), piece.count,
                    tensors.at(tensor.name + "/" + tensor.kind).begin() + piece.first_element);
      }
    });
  });
  return tensors;
}

RunShape of(int replicas, int shards, int stage) {
  return {.world_size = replicas * shards,
          .axes = {{"replicate", replicas}, {"shard", shards}},
          .stage = stage};
}

TEST(LocalUpdatesResume, HoldsWhatWasSavedOnAsManyReplicas) {
  for (int stage = 0; stage <= 3; ++stage) {
    const test::TempFolder folder;
    const Tensors saved = held(folder.path(), of(2, 2, stage), true);
    EXPECT_NE(saved.at("embedding.token.weight/local"),
              saved.at("replica.1.embedding.token.weight/local"));
    EXPECT_NE(saved.at("embedding.token.weight/local"), saved.at("embedding.token.weight/param"));
    for (int other = 0; other <= 3; ++other) {
      for (const int shards : {1, 3}) {
        EXPECT_TRUE(held(folder.path(), of(2, shards, other), false) == saved)
            << stage << " to " << other << " on " << shards;
      }
    }
  }
}

TEST(LocalUpdatesResume, TakesTheGlobalWeightsAndTheMomentsOfTheFirstOnOtherNumbers) {
  const test::TempFolder folder;
  const Tensors saved = held(folder.path(), of(2, 1, 1), true);
  for (const int replicas : {1, 3, 4}) {
    const Tensors loaded = held(folder.path(), of(replicas, 2, replicas % 4), false);
    int compared = 0;
    for (const auto& [name, values] : loaded) {
      std::string parameter = name;
      int replica = 0;
      if (name.starts_with("replica.")) {
        replica = name[8] - '0';
        parameter = name.substr(10);
      }
      const bool joins = replica >= 2;
      const std::string from = parameter.ends_with("/local")
                                   ? parameter.substr(0, parameter.rfind('/')) + "/param"
                               : joins ? parameter
                                       : name;
      EXPECT_EQ(values, saved.at(from)) << name << " of " << replicas;
      ++compared;
    }
    EXPECT_EQ(compared, static_cast<int>(loaded.size()));
  }
}

}  // namespace
}  // namespace sherd::testing
