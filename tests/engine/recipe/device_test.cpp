// What GPUs can't compute is refused as soon as it is known that one would have to.
#include <gtest/gtest.h>

#include "engine/recipe/device_rules.h"
#include "tests/engine/recipe/recipe_support.h"
#include "tests/support/values/error_text.h"

namespace sherd::engine {
namespace {

struct Case {
  std::vector<std::string> sets;
  std::string sentence;
};

const Case kCases[] = {
    {{"parallelism.batch_groups=2", "training.micro_batch_size=4"},
     "parallelism.batch_groups is 2; on GPUs it can only be the number of replicas, 1."},
    {{"parallelism.sum_order=canonical", "model.head_width=32", "model.ffn_hidden_size=256"},
     "parallelism.sum_order is canonical, which only CPUs support; use sum_order: rank, or set "
     "run.device: cpu."},
    {{"run.cuda_graphs=true", "parallelism.tensor_parallel_degree=2"},
     "run.cuda_graphs is true, but graphs can't contain exchanges of tensor or context ranks; use "
     "cuda_graphs: false."}};

TEST(DeviceRules, ARecipeThatNamesAGpuIsRefusedWhereItIsRead) {
  for (const Case& each : kCases) {
    std::vector<std::string> sets = each.sets;
    sets.emplace_back("run.device=cuda");
    EXPECT_EQ(error_of(kTinyRecipe, sets), "--set " + each.sets[0] + ": " + each.sentence);
  }
}

TEST(DeviceRules, OneThatLeavesTheDeviceOpenIsRefusedWhenItIsKnown) {
  for (const Case& each : kCases) {
    const ResolvedRecipe recipe = resolve(kTinyRecipe, each.sets);
    EXPECT_NO_THROW(require_possible_on(DeviceKind::kCpu, recipe.values));
    EXPECT_EQ(test::error_text<UsageError>(
                  [&] { require_possible_on(DeviceKind::kCuda, recipe.values); }),
              each.sentence);
  }
}

TEST(DeviceRules, AllThatAGpuCantDoIsToldAtOnce) {
  const ResolvedRecipe recipe =
      resolve(kTinyRecipe, {"run.cuda_graphs=true", "parallelism.tensor_parallel_degree=2",
                            "parallelism.batch_groups=2", "training.micro_batch_size=4"});
  try {
    require_possible_on(DeviceKind::kCuda, recipe.values);
    ADD_FAILURE();
  } catch (const RecipeErrors& errors) {
    EXPECT_EQ(errors.lines().size(), 2u);
  }
}

}  // namespace
}  // namespace sherd::engine
