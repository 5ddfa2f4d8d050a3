// The plan of replicas that train apart: bytes by algebra, and the text.
#include "engine/plan/exchange_plan.h"

#include <gtest/gtest.h>

#include "engine/plan/report.h"
#include "engine/recipe/recipe.h"

namespace sherd::engine {
namespace {

ResolvedRecipe recipe_with(const std::vector<std::string>& sets) {
  constexpr const char* kText = R"(
run: {name: apart, device: cpu}
model: {num_layers: 2, hidden_size: 64, num_attention_heads: 4, vocab_size: 256, bias: false,
        norm: rmsnorm, positions: rope, activation: gelu, tie_embeddings: true, ffn_hidden_size: 256}
data: {path: nowhere}
training: {seq_length: 16, micro_batch_size: 1, max_steps: 1}
zero_optimization: {stage: 2}
)";
  return resolve_recipe(
      {.path = "apart.yaml", .text = kText, .sets = sets, .ranks = {}, .reads_data = false});
}

TEST(ExchangePlan, IsOnlyForReplicasThatTrainApart) {
  const Recipe recipe = recipe_with({"parallelism.data_parallel_replicate_degree=2"}).values;
  EXPECT_FALSE(exchange_plan(training_options(recipe), mesh_of(recipe)));
}

// Every size here is a multiple of 64 elements and of the ranks, so nothing is padded. A replica's
// two ranks have half of the elements each. Four replicas: 2 x 3/4 of 4 bytes an element.
TEST(ExchangePlan, CountsEachElementOnceInEachDirection) {
  const Recipe recipe =
      recipe_with({"parallelism.data_parallel_replicate_degree=4",
                   "parallelism.data_parallel_shard_degree=2", "diloco.sync_every=6",
                   "diloco.num_fragments=3", "diloco.fragment_sync_delay=1"})
          .values;
  const auto plan = exchange_plan(training_options(recipe), mesh_of(recipe));
  ASSERT_TRUE(plan);
  // Embedding with the final norm; attention, two matrices of the other branch and two norms.
  const std::int64_t embedding = 256 * 64 + 64;
  const std::int64_t block = 4 * 64 * 64 + 2 * 64 * 256 + 2 * 64;
  const auto padded = [](std::int64_t numel) { return (numel + 511) / 512 * 512; };
  const std::int64_t of_embedding = padded(embedding) / 2, of_block = padded(block) / 2;
  EXPECT_EQ(plan->fragment_bytes,
            (std::vector<std::int64_t>{of_embedding * 6, of_block * 6, of_block * 6}));
  EXPECT_EQ(plan->round_bytes, (of_embedding + 2 * of_block) * 6);
  // Global weights and momentum; the largest fragment's changes; others' parts of a unit.
  EXPECT_EQ(plan->held_bytes, (of_embedding + 2 * of_block) * 8 + of_block * 8);
}

TEST(ExchangePlan, IsPartOfTheReport) {
  const ResolvedRecipe recipe =
      recipe_with({"parallelism.data_parallel_replicate_degree=2", "diloco.sync_every=6",
                   "diloco.num_fragments=2", "diloco.fragment_sync_delay=1"});
  const PlanReport report = plan_report(recipe, {});
  const std::string text = plan_text(report);
  EXPECT_NE(text.find("2 replicas train apart: one of 2 fragments is exchanged every 3 steps, 1 "
                      "step before it is applied\n"),
            std::string::npos)
      << text;
  EXPECT_NE(text.find("sent in 6 steps "), std::string::npos);
  EXPECT_NE(plan_json(report).find("\"local_updates\""), std::string::npos);
}

}  // namespace
}  // namespace sherd::engine
