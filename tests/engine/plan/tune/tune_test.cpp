// Layouts that are measured here: which ones, in turns, and the recipe that is written.

#include "engine/plan/tune/tune.h"

#include "tests/engine/plan/plan_support.h"

namespace sherd::engine {
namespace {

constexpr const char* kTiny = R"(run: {name: tiny, device: cpu}
model: {num_layers: 2, hidden_size: 32, num_attention_heads: 2, vocab_size: 64}
data: {path: nowhere}
training: {seq_length: 16, global_batch_size: 8, micro_batch_size: 1, max_steps: 10}
parallelism: {data_parallel_shard_degree: 2}
checkpoint: {interval: 0}
)";

// Rates that can be given, so that nothing is measured before.
const GpuStepRates& rates() {
  static const GpuStepRates made(h100_rates(), false);
  return made;
}

TEST(Tune, MeasuresTheRecipeAndTheBestLayoutsInTurns) {
  int rounds = 0;
  const TuneResult result = tune(resolved(kTiny),
                                 {.search = {.top = 2},
                                  .rounds = 2,
                                  .steps = 3,
                                  .on_message = [&](const std::string&) { ++rounds; }},
                                 rates());
  EXPECT_EQ(rounds, 2);
  ASSERT_GE(result.layouts.size(), 2u);
  EXPECT_TRUE(result.layouts[0].layout.settings.empty());
  for (const TunedLayout& tuned : result.layouts) {
    EXPECT_EQ(tuned.seconds.size(), 6u);
    EXPECT_GT(tuned.median(), 0.0);
    EXPECT_GE(tuned.median(), result.best().median());
  }
  EXPECT_NE(tune_text(result).find("<- fastest"), std::string::npos);
}

TEST(Tune, WritesARecipeThatSaysWhereItComesFrom) {
  const TuneResult result =
      tune(resolved(kTiny), {.search = {.top = 1}, .rounds = 1, .steps = 1}, rates());
  const std::string text = tuned_recipe(result, "tiny.yaml");
  EXPECT_TRUE(text.starts_with("# Written by `sherd tune tiny.yaml`."));
  const Recipe again = resolved(text).values;
  EXPECT_EQ(again.training.global_batch_size, 8);
  EXPECT_EQ(again.model.hidden_size, 32);
  EXPECT_EQ(again.training.micro_batch_size,
            result.best().layout.recipe.values.training.micro_batch_size);
}

TEST(Tune, MedianIsTheMiddleOrTheMeanOfTwo) {
  EXPECT_DOUBLE_EQ((TunedLayout{.layout = {}, .seconds = {3.0, 1.0, 2.0}}.median()), 2.0);
  EXPECT_DOUBLE_EQ((TunedLayout{.layout = {}, .seconds = {4.0, 1.0, 2.0, 3.0}}.median()), 2.5);
}

TEST(Tune, MeasuresMultiTokenPredictionAndLossesOfSources) {
  std::string sources = kTiny;
  sources.replace(sources.find("path: nowhere"), 13,
                  "sources: [{name: a, path: nowhere}, {name: b, path: nowhere}]");
  for (const ResolvedRecipe& recipe :
       {resolved(kTiny, {"mtp.num_layers=2"}), resolved(sources, {"metrics.source_losses=true"}),
        resolved(kTiny, {"mtp.num_layers=1", "parallelism.data_parallel_shard_degree=1",
                         "parallelism.context_parallel_degree=2"})}) {
    EXPECT_EQ(measured_steps(recipe, 2).size(), 2u);
  }
}

TEST(Tune, RefusesWhatItCantFeed) {
  EXPECT_EQ(usage_error_of([&] {
              tune(resolved(kTiny, {"zero_optimization.offload_optimizer=nvme"}), {}, rates());
            }),
            "sherd tune makes up its tokens and can't measure offloaded state "
            "(zero_optimization.offload_*). Leave it out with --set.");
}

}  // namespace
}  // namespace sherd::engine
