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
     "cuda_graphs: false."},
    {{"run.cuda_graphs=true", "zero_optimization.offload_optimizer=cpu"},
     "run.cuda_graphs is true, but graphs can't contain copies to the host's memory; use "
     "cuda_graphs: false, or zero_optimization.offload_optimizer: none."},
    {{"run.cuda_graphs=true", "activation_checkpointing.mode=full"},
     "run.cuda_graphs is true, but graphs can't contain activation_checkpointing.mode: full, where "
     "a backward depends on the forward before it; use cuda_graphs: false."},
    {{"run.cuda_graphs=true", "model.dropout=0.1"},
     "run.cuda_graphs is true, but graphs can't contain model.dropout, which draws anew at each "
     "step; use cuda_graphs: false."},
    {{"moe.grouped_gemm=true", "moe.num_experts=4"},
     "moe.grouped_gemm is true, but mixed_precision.param_dtype is f32, and grouped products are "
     "of bf16 and f16; use grouped_gemm: false."},
    {{"moe.grouped_gemm=true", "moe.num_experts=4", "mixed_precision.param_dtype=bf16",
      "moe.bias=true"},
     "moe.grouped_gemm is true, but grouped products don't add biases, and moe.bias is true; use "
     "grouped_gemm: false."},
    {{"moe.grouped_gemm=true", "moe.num_experts=4", "mixed_precision.param_dtype=bf16",
      "model.hidden_size=36", "model.head_width=8"},
     "moe.grouped_gemm is true, but model.hidden_size is 36, which isn't a multiple of 8; use "
     "grouped_gemm: false."},
    {{"moe.grouped_gemm=true", "moe.num_experts=4", "mixed_precision.param_dtype=f16",
      "moe.ffn_hidden_size=24", "parallelism.tensor_parallel_degree=2"},
     "moe.grouped_gemm is true, but moe.ffn_hidden_size is 24, which isn't a multiple of 16; use "
     "grouped_gemm: false."},
    {{"zero_optimization.offload_optimizer=nvme"},
     "zero_optimization.offload_optimizer is nvme, which only CPUs support; use cpu, the host's "
     "memory, or set run.device: cpu."}};

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
    EXPECT_EQ(test::error_text<UsageError>(
                  [&] { require_possible_on(DeviceKind::kCuda, recipe.values); }),
              each.sentence);
  }
}

TEST(DeviceRules, ACpuHasNoOtherMemoryToKeepStateIn) {
  const std::string sentence =
      "zero_optimization.offload_optimizer is cpu, but on a CPU all state is in its memory "
      "already; "
      "use nvme for a disk, or none.";
  const std::string set = "zero_optimization.offload_optimizer=cpu";
  EXPECT_EQ(error_of(kTinyRecipe, {set, "run.device=cpu"}), "--set " + set + ": " + sentence);
  const ResolvedRecipe open = resolve(kTinyRecipe, {set});
  EXPECT_EQ(
      test::error_text<UsageError>([&] { require_possible_on(DeviceKind::kCpu, open.values); }),
      sentence);
  EXPECT_NO_THROW(require_possible_on(DeviceKind::kCuda, open.values));
}

TEST(DeviceRules, TheHostsCoresUpdateOnlyWhatIsInTheHostsMemory) {
  const std::string update = "zero_optimization.offload_update=cpu",
                    optimizer = "zero_optimization.offload_optimizer=cpu",
                    param = "zero_optimization.offload_param=cpu",
                    half = "mixed_precision.param_dtype=bf16", stage3 = "zero_optimization.stage=3",
                    cuda = "run.device=cuda";
  const auto missing = [&](const std::string& what) {
    return "--set " + update +
           ": zero_optimization.offload_update is cpu, but not all that an update needs is in the "
           "host's memory: that also takes " +
           what + ".";
  };
  const std::string no_error = "no error", no_momentum = "optimizer.momentum=0",
                    sgd = "optimizer.type=sgd", sixteen = "a 16-bit mixed_precision.param_dtype",
                    divide = "zero_optimization.shard_optimizer_over_replicas=true",
                    replicas = "parallelism.data_parallel_replicate_degree=2";
  const std::pair<std::vector<std::string>, std::string> cases[] = {
      {{}, missing("offload_optimizer: cpu and " + sixteen)},
      {{optimizer}, missing(sixteen)},
      {{optimizer, half}, no_error},
      {{optimizer, half, stage3}, missing("offload_param: cpu")},
      {{optimizer, param, stage3}, no_error},
      {{param, stage3}, missing("offload_optimizer: cpu")},
      {{param, stage3, sgd, no_momentum}, no_error},
      {{stage3, sgd, no_momentum}, missing("offload_param: cpu")},
      // Replicas divide the optimizer's state: then ranks gather 16-bit parts.
      {{optimizer, half, stage3, divide, replicas}, no_error},
      {{optimizer, param, stage3, divide, replicas}, missing(sixteen)},
      {{optimizer, half, stage3, divide}, missing("offload_param: cpu")}};
  for (const auto& [more, expected] : cases) {
    std::vector<std::string> sets = {update, cuda};
    sets.insert(sets.end(), more.begin(), more.end());
    EXPECT_EQ(error_of(kTinyRecipe, sets), expected) << ::testing::PrintToString(more);
  }
  const ResolvedRecipe open = resolve(kTinyRecipe, {update, optimizer, half});
  try {
    require_possible_on(DeviceKind::kCpu, open.values);
    ADD_FAILURE();
  } catch (const RecipeErrors& errors) {
    EXPECT_NE(std::string(errors.what())
                  .find("zero_optimization.offload_update is cpu, but on a CPU its cores update "
                        "everything already; leave it out."),
              std::string::npos)
        << errors.what();
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
