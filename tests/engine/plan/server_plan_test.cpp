// The plan of parameter servers: both kinds of rank, their bytes, and what doesn't fit.
#include <gtest/gtest.h>

#include "engine/plan/memory_report.h"
#include "engine/plan/report.h"
#include "engine/recipe/recipe.h"

namespace sherd::engine {
namespace {

ResolvedRecipe recipe_with(std::vector<std::string> sets) {
  constexpr const char* kText = R"(
run: {name: served, device: cpu}
model: {num_layers: 2, hidden_size: 64, num_attention_heads: 4, vocab_size: 256, bias: false,
        norm: rmsnorm, positions: rope, activation: gelu, tie_embeddings: true, ffn_hidden_size: 256}
data: {path: nowhere}
training: {seq_length: 16, global_batch_size: 4, micro_batch_size: 1, max_steps: 1}
mixed_precision: {param_dtype: bf16}
)";
  sets.insert(sets.begin(),
              {"zero_optimization.stage=2", "parallelism.data_parallel_shard_degree=4",
               "parallelism.parameter_servers=2"});
  return resolve_recipe(
      {.path = "served.yaml", .text = kText, .sets = sets, .ranks = {}, .reads_data = false});
}

std::int64_t bytes_of(const std::vector<sharding::Sent>& all, const std::string& label) {
  std::int64_t bytes = 0;
  for (const sharding::Sent& sent : all) bytes += sent.label == label ? sent.bytes : 0;
  return bytes;
}

// docs/parameter_server.md: a worker sends 4 bytes per parameter, a server 2 W / N. Nothing is padded:
// sizes are multiples of 64 x 4 x 2, apart from norms of 64, of which the plan has three units.
TEST(ServerPlan, CountsTheBytesOfBothKindsOfRank) {
  const ResolvedRecipe recipe = recipe_with({});
  const PlanReport report = plan_report(recipe, device_limit(recipe.values, 1 << 30));
  const std::int64_t pushed = bytes_of(report.sent, "gradients");
  EXPECT_GE(pushed, 4 * report.num_parameters);
  EXPECT_LE(pushed, 4 * (report.num_parameters + 3 * 512));
  EXPECT_EQ(bytes_of(report.sent, "parameters"), 0);
  EXPECT_EQ(bytes_of(report.sent_by_server.sent(), "parameters"), pushed / 2 * 4 / 2);
  EXPECT_EQ(bytes_of(report.sent_by_server.sent(), "gradients"), 0);
  const std::string text = plan_text(report);
  for (const char* part :
       {"workers: rank 0 of 6 ranks", "parameter servers: rank 4 of 6 ranks",
        "sent in a step by each worker", "sent in a step by each parameter server",
        "6 ranks (shard 4 + owner 2)"}) {
    EXPECT_NE(text.find(part), std::string::npos) << part << " in\n" << text;
  }
}

TEST(ServerPlan, HoldsNoActivationsOnServersAndNoMomentsOnWorkers) {
  const WorldPlan plan = plan_world(recipe_with({}).values);
  const MemoryPlan &worker = plan.of(0), &server = plan.of(5);
  const auto peak = [](const MemoryPlan& of, Category category) {
    return of.peak_by_category()[static_cast<std::size_t>(category)];
  };
  EXPECT_EQ(peak(worker, Category::kOptimizer), 0);
  EXPECT_EQ(peak(worker, Category::kMaster), 0);
  EXPECT_GT(peak(server, Category::kOptimizer), 0);
  EXPECT_EQ(peak(server, Category::kActivations), 0);
  EXPECT_EQ(plan.equal_ranks().size(), 2U);
}

TEST(ServerPlan, RefusesEitherKindThatDoesntFit) {
  const auto said = [](const std::vector<std::string>& sets) -> std::string {
    const ResolvedRecipe recipe = recipe_with(sets);
    try {
      check_fits(recipe, plan_world(recipe.values), device_limit(recipe.values));
    } catch (const UsageError& error) {
      return error.what();
    }
    return "fits";
  };
  EXPECT_EQ(said({"memory.device_memory=1GiB", "memory.server_memory=1GiB"}), "fits");
  const std::string server = said({"memory.device_memory=1GiB", "memory.server_memory=100KiB"});
  EXPECT_TRUE(server.starts_with("a parameter server, of 2, needs ")) << server;
  EXPECT_NE(server.find("memory.server_memory is 100 KiB"), std::string::npos) << server;
  const std::string worker = said({"memory.device_memory=100KiB", "memory.server_memory=1GiB"});
  EXPECT_TRUE(worker.starts_with("stage 2 on 6 ranks needs ")) << worker;
}

TEST(ServerPlan, ComparesOnlyStagesWithShardedState) {
  const ResolvedRecipe recipe = recipe_with({});
  const PlanReport report = plan_report(recipe, device_limit(recipe.values, 1 << 30));
  ASSERT_EQ(report.stages.size(), 3U);
  EXPECT_EQ(report.stages[0].stage, 1);
}

}  // namespace
}  // namespace sherd::engine
