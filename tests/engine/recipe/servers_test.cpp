// Keys of parameter servers.
#include <gtest/gtest.h>

#include "engine/train/from_recipe.h"
#include "tests/engine/recipe/recipe_support.h"

namespace sherd::engine {
namespace {

std::string refused(std::vector<std::string> sets) {
  sets.insert(sets.begin(), {"parallelism.parameter_servers=2", "run.device=cpu"});
  return error_of(kTinyRecipe, sets);
}

TEST(RecipeServers, AreRanksAfterThoseThatCompute) {
  const Recipe recipe = resolve(kTinyRecipe, {"parallelism.parameter_servers=2",
                                              "parallelism.data_parallel_shard_degree=4",
                                              "zero_optimization.stage=2", "run.device=cpu"})
                            .values;
  EXPECT_EQ(recipe.num_workers(), 4);
  EXPECT_EQ(recipe.world_size(), 6);
  EXPECT_EQ(mesh_of(recipe).num_owners(), 2);
  EXPECT_EQ(recipe.data_degree(), 4) << "servers have no batch";
  EXPECT_FALSE(training_options(recipe).placement.published_late);
  EXPECT_TRUE(training_options(resolve(kTinyRecipe, {"parallelism.parameter_servers=1",
                                                     "parallelism.publish_delay=1",
                                                     "zero_optimization.stage=1", "run.device=cpu"})
                                   .values)
                  .placement.published_late);
}

TEST(RecipeServers, NeedStateThatIsSharded) {
  EXPECT_EQ(refused({"zero_optimization.stage=0"}),
            "--set zero_optimization.stage=0: parallelism.parameter_servers is 2, but at "
            "zero_optimization.stage 0 every rank holds all state. Use stage 1, 2 or 3.");
  for (const char* stage : {"1", "2", "3"}) {
    EXPECT_EQ(refused({std::string("zero_optimization.stage=") + stage}), "no error");
  }
}

TEST(RecipeServers, RefuseWhatIsntBuiltByName) {
  for (const auto& [key, value] : {std::pair("parallelism.data_parallel_replicate_degree", "2"),
                                   {"parallelism.pipeline_parallel_degree", "2"},
                                   {"parallelism.tensor_parallel_degree", "2"},
                                   {"parallelism.context_parallel_degree", "2"},
                                   {"mixed_precision.gather_dtype", "int8_block64"},
                                   {"mixed_precision.reduce_dtype", "int4_block64"},
                                   {"zero_optimization.offload_optimizer", "nvme"},
                                   {"moe.num_experts", "4"},
                                   {"diloco.sync_every", "4"}}) {
    const std::string error =
        refused({"zero_optimization.stage=2", fmt::format("{}={}", key, value)});
    EXPECT_NE(error.find(fmt::format("parallelism.parameter_servers is 2, and {} isn't supported "
                                     "with parameter servers. Leave out one of the two.",
                                     key)),
              std::string::npos)
        << error;
  }
}

TEST(RecipeServers, AreForCpus) {
  const std::string error = error_of(kTinyRecipe, {"parallelism.parameter_servers=1",
                                                   "zero_optimization.stage=1", "run.device=cuda"});
  EXPECT_NE(
      error.find("parallelism.parameter_servers is 1, but parameter servers and their workers "
                 "are CPU ranks only; use 0, or set run.device: cpu."),
      std::string::npos)
      << error;
}

}  // namespace
}  // namespace sherd::engine
