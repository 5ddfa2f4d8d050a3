// An axis that nothing in Sherd knows: ranks along it hold copies of everything. Whatever asks the
// mesh, and not the world, must be right on it.
#include <gtest/gtest.h>

#include <mutex>
#include <set>

#include "engine/saving/run_state.h"
#include "tests/support/runs/training_harness.h"

namespace sherd::testing {
namespace {

using sharding::AxisSet;
using sharding::Mesh;

const std::vector<sharding::MeshAxis> kAxes = {{"outer", 2}, {"shard", 2}, {"made_up", 2}};

engine::TrainingOptions options_of(optim::OptimizerType type) {
  engine::TrainingOptions options = tiny_training(tiny_model(true), 0.05f);  // clips
  options.optimizer.type = type;
  options.optimizer.momentum = 0.9f;
  options.num_micro_steps = 2;
  return options;
}

TEST(MadeUpAxis, HasItsGroupsAndPlacements) {
  const Mesh mesh(kAxes);
  EXPECT_EQ(mesh.group(5, {"made_up"}), (std::vector<int>{4, 5}));
  EXPECT_EQ(mesh.group(5, {"shard"}), (std::vector<int>{5, 7}));
  EXPECT_EQ(mesh.group(5, {"outer", "made_up"}), (std::vector<int>{0, 1, 4, 5}));
  const sharding::Placement placement = sharding::placement_of(3);
  int counting = 0;
  for (int rank = 0; rank < 8; ++rank) {
    counting += sharding::contributes_slice(mesh, rank, placement);
    EXPECT_EQ(mesh.index_in_group(rank, placement.group), rank / 2 % 2);
  }
  EXPECT_EQ(counting, 2) << "each of the two slices counts once";
}

// Losses, norms (clipping is active, LAMB's are per tensor) and weights: bit for bit those of the
// world without the axes.
TEST(MadeUpAxis, ChangesNoBitOfATrainingAtAnyStage) {
  for (const auto type : {optim::OptimizerType::kAdamW, optim::OptimizerType::kLamb,
                          optim::OptimizerType::kMuon, optim::OptimizerType::kDion}) {
    for (int stage = 0; stage <= 3; ++stage) {
      RunShape plain{.world_size = 2, .num_micro_steps = 2, .stage = stage};
      const Outcome expected = train(options_of(type), plain, 3);
      RunShape meshed = plain;
      meshed.world_size = 8;
      meshed.axes = kAxes;
      EXPECT_EQ(difference(expected, train(options_of(type), meshed, 3)), "")
          << "stage " << stage << ", optimizer " << static_cast<int>(type);
    }
  }
}

// Ranks with copies divide the work: each element of each state tensor is one rank's.
TEST(MadeUpAxis, CheckpointPiecesHoldEveryElementOnce) {
  for (const auto type : {optim::OptimizerType::kAdamW, optim::OptimizerType::kMuon}) {
    for (int stage = 0; stage <= 3; ++stage) {
      RunShape setup{.world_size = 8, .stage = stage};
      setup.axes = kAxes;
      const engine::TrainingOptions options = applied(options_of(type), setup);
      const auto tensors = engine::state_tensors(options);
      std::vector<std::vector<int>> writers;
      for (const auto& tensor : tensors) {
        writers.emplace_back(static_cast<std::size_t>(tensor.numel()), 0);
      }
      std::mutex mutex;
      std::set<int> ranks_that_write;
      run_ranks(setup, [&](sharding::Rank& rank) {
        engine::ShardedModel model(options, rank);
        const engine::TrainingStep training_step(options, model);
        const auto state = engine::run_state(options, model, training_step, engine::Pieces::kOwned);
        std::lock_guard lock(mutex);
        for (const sharding::StatePiece& piece : state.pieces) {
          ranks_that_write.insert(rank.rank);
          EXPECT_EQ(piece.data.numel, piece.count);
          for (std::int64_t i = 0; i < piece.count; ++i) {
            ++writers[static_cast<std::size_t>(piece.tensor)]
                     [static_cast<std::size_t>(piece.first_element + i)];
          }
        }
      });
      for (std::size_t i = 0; i < tensors.size(); ++i) {
        EXPECT_EQ(writers[i], std::vector<int>(writers[i].size(), 1))
            << tensors[i].name << " " << tensors[i].kind << ", stage " << stage;
      }
      EXPECT_EQ(ranks_that_write.size(), 8u) << "the work is divided";
    }
  }
}

}  // namespace
}  // namespace sherd::testing
