// The closed form, compared with the ledger, which walks a step's launches, and with algebra.

#include "engine/plan/time/step_time.h"

#include <fmt/ranges.h>

#include "engine/launch/device.h"
#include "engine/plan/ledger/step_ledger.h"
#include "engine/plan/time/from_recipe.h"
#include "engine/train/from_recipe.h"
#include "tests/engine/plan/plan_support.h"

namespace sherd::engine {
namespace {

// Large enough that matmuls decide.
constexpr const char* kRecipe = R"(run: {name: small, device: cuda}
model:
  num_layers: 8
  hidden_size: 2048
  num_attention_heads: 16
  ffn_hidden_size: 5632
  vocab_size: 32000
  activation: swiglu
  norm: rmsnorm
  positions: rope
  bias: false
  tie_embeddings: false
data: {path: nowhere}
training: {seq_length: 2048, global_batch_size: 64, micro_batch_size: 4, max_steps: 10}
mixed_precision: {param_dtype: bf16}
checkpoint: {interval: 0}
)";

StepTime time_of(const Strings& sets, std::int64_t per_machine = 8) {
  const GpuStepRates rates(h100_rates(), false);
  return StepTimes(rates, per_machine).of(step_shape(resolved(kRecipe, sets).values));
}

// Of the rank with the last positions, if ranks divide sequences.
double last_ranks_ledger(const Recipe& recipe) {
  const sharding::Mesh mesh = mesh_of(recipe);
  return step_ledger(
             {options_on_device(recipe), mesh, cuda_options(recipe).stream, mesh.world_size() - 1},
             h100_rates())
      .seconds;
}

TEST(StepTime, AgreesWithTheLedger) {
  const std::vector<Strings> layouts = {
      {},
      {"parallelism.data_parallel_shard_degree=8", "zero_optimization.stage=3"},
      {"parallelism.data_parallel_shard_degree=8", "zero_optimization.stage=2"},
      {"parallelism.data_parallel_shard_degree=8", "zero_optimization.stage=1"},
      {"parallelism.data_parallel_shard_degree=8", "zero_optimization.stage=0"},
      {"parallelism.data_parallel_shard_degree=4", "parallelism.data_parallel_replicate_degree=2",
       "zero_optimization.stage=3"},
      {"parallelism.tensor_parallel_degree=4"},
      {"parallelism.tensor_parallel_degree=4", "parallelism.sequence_parallel=true"},
      {"parallelism.context_parallel_degree=4"},
      {"parallelism.context_parallel_degree=2", "parallelism.context_parallel_method=all_gather"},
      {"activation_checkpointing.mode=full"},
      {"activation_checkpointing.mode=selective"},
      {"training.micro_batch_size=1"}};
  for (const Strings& layout : layouts) {
    const double ledger = last_ranks_ledger(resolved(kRecipe, layout).values);
    const StepTime time = time_of(layout);
    fmt::print("{:>6.3f} of the ledger's {:.3f} s: {}\n", time.total() / ledger, ledger,
               fmt::join(layout, " "));
    EXPECT_NEAR(time.total() / ledger, 1.0, 0.15) << fmt::format("{}", fmt::join(layout, " "));
  }
}

TEST(StepTime, IsTheSumOfItsParts) {
  const StepTime time =
      time_of({"parallelism.data_parallel_shard_degree=4", "parallelism.pipeline_parallel_degree=2",
               "zero_optimization.stage=1"});
  double sum = 0.0;
  for (const auto& [name, seconds] : time.parts()) sum += seconds;
  EXPECT_NEAR(sum, time.total(), 1e-9);
  EXPECT_GT(time.bubble, 0.0);
}

// Micro-batches that don't change size take as long each; the update stays.
TEST(StepTime, GrowsWithTheMicroBatches) {
  const StepTime one = time_of({"training.global_batch_size=4"});
  const StepTime four = time_of({"training.global_batch_size=16"});
  EXPECT_NEAR(four.total() - one.total(), 3.0 * (one.total() - one.update) + four.accumulation,
              1e-9);
}

TEST(StepTime, ImbalanceMakesExpertsSlower) {
  StepShape step = step_shape(
      resolved(kRecipe, {"run.device=cpu", "moe.num_experts=8", "moe.experts_per_token=2",
                         "moe.ffn_hidden_size=1024", "parallelism.data_parallel_shard_degree=8",
                         "parallelism.expert_parallel_degree=8"})
          .values);
  const GpuStepRates rates(h100_rates(), false);
  const StepTime balanced = StepTimes(rates, 8).of(step);
  EXPECT_GT(balanced.expert, 0.0);
  step.imbalance = 2.0;
  const StepTime uneven = StepTimes(rates, 8).of(step);
  EXPECT_GT(uneven.expert, 1.5 * balanced.expert);
  EXPECT_GT(uneven.matmuls, balanced.matmuls);
}

// Of a model that is little else: half of each expert's width is half the work, and two sums more.
TEST(StepTime, TensorRanksShareTheWorkOfExperts) {
  const auto on = [](const char* ranks) {
    const StepShape step = step_shape(
        resolved(kRecipe, {"run.device=cpu", "moe.num_experts=8", "moe.experts_per_token=8",
                           "moe.ffn_hidden_size=8192", "moe.shared_ffn_hidden_size=8192",
                           std::string("parallelism.tensor_parallel_degree=") + ranks})
            .values);
    return StepTimes(GpuStepRates(h100_rates(), false), 8).of(step);
  };
  const StepTime one = on("1"), two = on("2");
  EXPECT_NEAR(two.matmuls / one.matmuls, 0.5, 0.05);
  EXPECT_EQ(one.tensor, 0.0);
  EXPECT_GT(two.tensor, 0.0);
}

TEST(StepTime, LinksBetweenMachinesCostMoreThanThoseWithin) {
  const Strings sharded = {"parallelism.data_parallel_shard_degree=8", "zero_optimization.stage=3",
                           "zero_optimization.prefetch_depth=0"};
  EXPECT_GT(time_of(sharded, 1).total(), 1.1 * time_of(sharded, 8).total());
  EXPECT_GT(time_of(sharded, 1).gathers, 1.5 * time_of(sharded, 8).gathers);
}

}  // namespace
}  // namespace sherd::engine
