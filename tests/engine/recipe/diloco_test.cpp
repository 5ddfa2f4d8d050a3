// Keys of replicas that train apart.
#include <gtest/gtest.h>

#include "engine/train/from_recipe.h"
#include "tests/engine/recipe/recipe_support.h"

namespace sherd::engine {
namespace {

std::string refused(std::vector<std::string> sets) {
  sets.insert(sets.begin(), {"parallelism.data_parallel_replicate_degree=2", "diloco.sync_every=6",
                             "run.device=cpu"});
  return error_of(kTinyRecipe, sets);
}

TEST(RecipeDiloco, KeysReachTheTraining) {
  const TrainingOptions none = training_options(resolve(kTinyRecipe).values);
  EXPECT_FALSE(none.local_updates.active());
  EXPECT_FALSE(none.placement.replicas_apart);

  const TrainingOptions apart = training_options(
      resolve(kTinyRecipe, {"parallelism.data_parallel_replicate_degree=4", "diloco.sync_every=6",
                            "diloco.num_fragments=3", "diloco.fragment_sync_delay=1",
                            "diloco.fragment_update_alpha=0.5", "diloco.outer_lr=0.4",
                            "diloco.quantize=int4_block64"})
          .values);
  EXPECT_EQ(apart.local_updates.num_replicas, 4);
  EXPECT_EQ(apart.local_updates.period(), 2);
  EXPECT_EQ(apart.local_updates.fragment_sync_delay, 1);
  EXPECT_EQ(apart.local_updates.fragment_update_alpha, 0.5);
  EXPECT_EQ(apart.local_updates.outer_lr, 0.4);
  EXPECT_EQ(apart.local_updates.outer_momentum, 0.9);
  EXPECT_EQ(apart.local_updates.quantize, optim::Quantize::kInt4);
  EXPECT_TRUE(apart.placement.replicas_apart);
  EXPECT_EQ(apart.placement.batch_groups, 1);
}

TEST(RecipeDiloco, OneReplicaMayTrainApart) {
  EXPECT_EQ(error_of(kTinyRecipe, {"diloco.sync_every=5"}), "no error");
}

TEST(RecipeDiloco, FragmentsAreRefusedThatDontFit) {
  EXPECT_EQ(refused({"diloco.num_fragments=4"}),
            "--set diloco.num_fragments=4: diloco.sync_every is 6, which 4 fragments can't divide "
            "evenly. diloco.sync_every: 8 would work.");
  EXPECT_EQ(refused({"diloco.num_fragments=3", "diloco.fragment_sync_delay=2"}),
            "--set diloco.fragment_sync_delay=2: diloco.fragment_sync_delay is 2, but the next "
            "exchange begins 2 steps after one. Use at most 1.");
  // Embedding and two blocks; the head is tied or a unit of its own.
  EXPECT_EQ(refused({"diloco.num_fragments=6", "model.tie_embeddings=true"}),
            "--set diloco.num_fragments=6: diloco.num_fragments is 6, but the model has 3 units "
            "with trained parameters. Use at most 3.");
  EXPECT_EQ(refused({"diloco.num_fragments=3", "model.tie_embeddings=true"}), "no error");
}

TEST(RecipeDiloco, WhatReplicasWouldHaveToDecideTogetherIsRefused) {
  for (const auto& [key, value] : {std::pair("averages.type", "ema"),
                                   {"optimizer.qk_clip_threshold", "50"},
                                   {"zero_optimization.shard_optimizer_over_replicas", "true"},
                                   {"moe.num_experts", "4"}}) {
    std::vector<std::string> sets = {fmt::format("{}={}", key, value), "zero_optimization.stage=2"};
    EXPECT_NE(refused(sets).find(fmt::format("so replicas train apart, and {} isn't supported with "
                                             "that. Leave out one of the two.",
                                             key)),
              std::string::npos)
        << refused(sets);
  }
}

TEST(RecipeDiloco, IsForCpus) {
  EXPECT_EQ(error_of(kTinyRecipe, {"diloco.sync_every=6", "run.device=cuda"}),
            "--set diloco.sync_every=6: diloco.sync_every is 6, but replicas train apart on CPUs "
            "only; use 0, or set run.device: cpu.");
}

TEST(RecipeDiloco, NamesOfOtherProgramsAreExplained) {
  EXPECT_NE(error_of_set("diloco.should_quantize=true").find("diloco.quantize"), std::string::npos)
      << error_of_set("diloco.should_quantize=true");
}

}  // namespace
}  // namespace sherd::engine
