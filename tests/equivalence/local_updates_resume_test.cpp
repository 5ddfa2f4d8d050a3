// What replicas that train apart hold after they were saved and loaded, by as many replicas and by others.

#include <gtest/gtest.h>

#include "tests/equivalence/held_state.h"
#include "tests/support/values/temp_folder.h"

namespace sherd::testing {
namespace {

constexpr int kStepsDone = 3;

engine::TrainingOptions two_fragments() {
  engine::TrainingOptions options = tiny_training(tiny_model(true));
  options.local_updates = {.sync_every = 4, .num_fragments = 2, .fragment_sync_delay = 1};
  return options;
}

Tensors held(const std::string& directory, const RunShape& setup, bool saves) {
  return held_state(two_fragments(), directory, setup, kStepsDone, saves);
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
