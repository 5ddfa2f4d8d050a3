// The search for layouts: what it may change, its order, and that nothing it proposes is refused or too
// large, for random recipes, which are run.

#include "engine/plan/search/search.h"

#include <fmt/ranges.h>

#include <filesystem>

#include "engine/plan/search/candidates.h"
#include "engine/plan/time/step_comparison.h"
#include "engine/recipe/fields.h"
#include "engine/recipe/values.h"
#include "engine/run/run.h"
#include "tests/engine/plan/plan_support.h"
#include "tests/support/random/random_recipe.h"

namespace sherd::engine {
namespace {

const GpuStepRates& gpu() {
  static const GpuStepRates rates(trained_gpu(h100_rates()), false);
  return rates;
}

constexpr const char* kSearchRecipe = R"(run: {name: seven, device: cuda}
model:
  num_layers: 32
  hidden_size: 4096
  num_attention_heads: 32
  ffn_hidden_size: 11008
  vocab_size: 32000
  activation: swiglu
  norm: rmsnorm
  positions: rope
  bias: false
  tie_embeddings: false
data: {path: nowhere}
training: {seq_length: 4096, global_batch_size: 128, micro_batch_size: 1, max_steps: 10}
parallelism: {data_parallel_shard_degree: 16}
mixed_precision: {param_dtype: bf16}
checkpoint: {interval: 0}
)";

Cluster gpus(std::int64_t machines) {
  return {.machines = machines, .ranks_per_machine = 8, .device = "H100"};
}

Strings sets_of(const FoundLayout& layout) {
  Strings sets;
  for (const auto& [key, value] : layout.settings) sets.push_back(key + "=" + value);
  return sets;
}

// In every key that isn't searched the layout is as before.
void expect_same_mathematics(const Recipe& own, const Recipe& found) {
  std::vector<std::string_view> may_change = {"training.gradient_accumulation_steps",
                                              "parallelism.batch_groups", "run.device"};
  for (const SearchKey key : all_search_keys()) may_change.push_back(key_of(key));
  for (const Field& field : recipe_fields()) {
    if (std::ranges::find(may_change, field.key) != may_change.end()) continue;
    EXPECT_EQ(format_value(field, own), format_value(field, found)) << field.key;
  }
}

// 1.9 billion weights: 34 GB with their state, 11 GB without. Over the link their state takes 0.9 s each way; the
// host's memory moves it in 0.3 s, or in 6 s.
TEST(Search, UpdatesOnTheHostWhereItsMemoryIsFasterThanTheLink) {
  const ResolvedRecipe recipe =
      resolved(kSearchRecipe, {"model.num_layers=8", "parallelism.data_parallel_shard_degree=1",
                               "training.global_batch_size=8"});
  for (const double host_memory : {200e9, 10e9}) {
    const Cluster one{.machines = 1,
                      .ranks_per_machine = 1,
                      .device = "H100",
                      .host = {.bytes = 25e9},
                      .host_memory = {.bytes = host_memory}};
    const auto rates = rates_for(recipe.values, one, {});
    const SearchResult result =
        search_layouts(recipe, {.cluster = one, .device_memory = std::int64_t{24} << 30}, *rates);
    ASSERT_FALSE(result.best.empty());
    const ResolvedRecipe found = resolved(kSearchRecipe, sets_of(result.best[0]));
    EXPECT_EQ(found.values.zero_optimization.offload_optimizer, OffloadDevice::kCpu);
    EXPECT_EQ(found.values.zero_optimization.offload_update,
              host_memory > 25e9 ? OffloadDevice::kCpu : OffloadDevice::kNone);
  }
}

TEST(Search, ProposesTheFastestLayoutsThatFit) {
  const ResolvedRecipe recipe = resolved(kSearchRecipe);
  const SearchResult result = search_layouts(recipe, {.cluster = gpus(2)}, gpu());
  EXPECT_FALSE(result.own_fits);  // stage 0: 16 bytes a weight, of 6.7 billion
  ASSERT_EQ(result.best.size(), 3u);
  double before = 0.0;
  for (const FoundLayout& layout : result.best) {
    EXPECT_GE(layout.seconds, before);
    before = layout.seconds;
    const ResolvedRecipe again = resolved(kSearchRecipe, sets_of(layout));
    EXPECT_EQ(again.values.world_size(), 16);
    EXPECT_EQ(again.values.training.global_batch_size, 128);
    EXPECT_EQ(need(again, result.limit), layout.needed_bytes);
    EXPECT_LE(layout.needed_bytes, result.limit.bytes);
    expect_same_mathematics(recipe.values, again.values);
  }
}

TEST(Search, DrawsWhatLessMemoryCostsInTime) {
  const ResolvedRecipe recipe = resolved(kSearchRecipe);
  const SearchResult result = search_layouts(recipe, {.cluster = gpus(2), .tradeoff = 40}, gpu());
  ASSERT_GE(result.tradeoff.size(), 4u);
  for (std::size_t i = 1; i < result.tradeoff.size(); ++i) {
    EXPECT_GT(result.tradeoff[i].needed_bytes, result.tradeoff[i - 1].needed_bytes);
    EXPECT_LT(result.tradeoff[i].seconds, result.tradeoff[i - 1].seconds);
  }
  for (const FoundLayout& best : result.best) {
    EXPECT_TRUE(std::ranges::any_of(result.tradeoff, [&](const FoundLayout& layout) {
      return layout.needed_bytes <= best.needed_bytes && layout.seconds <= best.seconds;
    })) << best.command();
  }
  const std::string page = search_page(result, "seven <b>");
  for (const auto* layouts : {&result.tradeoff, &result.best}) {
    for (const FoundLayout& layout : *layouts) {
      EXPECT_NE(page.find(fmt::format("data-bytes=\"{}\"", layout.needed_bytes)),
                std::string::npos);
      EXPECT_NE(page.find(layout.command()), std::string::npos);
    }
  }
  EXPECT_NE(page.find("seven &lt;b&gt;"), std::string::npos);
  EXPECT_EQ(page.find("<script"), std::string::npos);
  EXPECT_EQ(page.find("://"), std::string::npos);
}

TEST(Search, KeepsWhatItIsAskedToKeep) {
  const SearchResult result = search_layouts(
      resolved(kSearchRecipe),
      {.cluster = gpus(2), .keep = {"parallelism", "training.micro_batch_size"}, .top = 10}, gpu());
  ASSERT_FALSE(result.best.empty());
  for (const FoundLayout& layout : result.best) {
    for (const auto& [key, value] : layout.settings) {
      EXPECT_FALSE(key.starts_with("parallelism.")) << key;
      EXPECT_NE(key, "training.micro_batch_size");
    }
  }
}

// At stage 3, parameters are released after their forward unless a setting keeps them.
TEST(Search, SetsKeysThatWouldFollowOtherwise) {
  constexpr std::string_view kReshard = "zero_optimization.reshard_after_forward";
  const SearchResult result =
      search_layouts(resolved(kSearchRecipe, {"zero_optimization.stage=3"}),
                     {.cluster = gpus(2),
                      .keep = {"parallelism", "zero_optimization.stage", "activation_checkpointing",
                               "training.micro_batch_size"},
                      .top = 20},
                     gpu());
  int num_kept = 0;
  for (const FoundLayout& layout : result.best) {
    if (layout.recipe.values.zero_optimization.reshard_after_forward) continue;
    ++num_kept;
    EXPECT_TRUE(std::ranges::any_of(layout.settings, [&](const auto& each) {
      return each.first == kReshard && each.second == "false";
    }));
  }
  EXPECT_GT(num_kept, 0);
}

// Eight tensor ranks exchange more than a search would let them.
TEST(Search, KeepsADegreeThatItWouldChange) {
  const ResolvedRecipe recipe = resolved(
      kSearchRecipe,
      {"parallelism.tensor_parallel_degree=8", "parallelism.data_parallel_shard_degree=2"});
  const SearchResult free = search_layouts(recipe, {.cluster = gpus(2), .top = 1}, gpu());
  EXPECT_LT(free.best.at(0).recipe.values.parallelism.tensor_parallel_degree, 8);
  const SearchResult kept = search_layouts(
      recipe, {.cluster = gpus(2), .keep = {"parallelism.tensor_parallel_degree"}}, gpu());
  ASSERT_FALSE(kept.best.empty());
  for (const FoundLayout& layout : kept.best) {
    EXPECT_EQ(layout.recipe.values.parallelism.tensor_parallel_degree, 8);
  }
}

TEST(Search, NamesTheKeysThatCanBeKept) {
  EXPECT_EQ(usage_error_of([&] {
              search_layouts(
                  resolved(kSearchRecipe),
                  {.keep = {"zero_optimization.stag"}, .device_memory = std::int64_t{80} << 30},
                  gpu());
            }),
            "--keep zero_optimization.stag: a search doesn't change this key; did you mean "
            "\"zero_optimization.stage\"?");
}

TEST(Search, RefusesParameterServers) {
  ResolvedRecipe recipe = resolved(kSearchRecipe);
  recipe.values.parallelism.parameter_servers = 2;
  EXPECT_EQ(
      usage_error_of([&] { search_layouts(recipe, {.cluster = gpus(2)}, gpu()); }),
      "parallelism.parameter_servers is 2, but layouts with parameter servers aren't searched. "
      "Search with --set parallelism.parameter_servers=0; --cluster without --search "
      "predicts this recipe's time.");
}

TEST(Search, FindsNothingWhereNothingFits) {
  const SearchResult result = search_layouts(
      resolved(kSearchRecipe), {.cluster = gpus(2), .device_memory = std::int64_t{1} << 30}, gpu());
  EXPECT_TRUE(result.best.empty());
  EXPECT_NE(search_text(result).find("No layout fits"), std::string::npos);
}

// Twice as many GPUs with the same batch can't be slower than half of them.
TEST(Search, MoreMachinesAreFaster) {
  double before = 1e9;
  for (const std::int64_t machines : {1, 2, 4}) {
    const SearchResult result =
        search_layouts(resolved(kSearchRecipe), {.cluster = gpus(machines), .top = 1}, gpu());
    ASSERT_EQ(result.best.size(), 1u);
    EXPECT_LT(result.best[0].seconds, before);
    before = result.best[0].seconds;
  }
}

TEST(Search, VisitsEveryLayoutOnce) {
  SearchSpace space{.own = step_shape(resolved(kSearchRecipe).values),
                    .ranks = 16,
                    .per_machine = 8,
                    .global_batch = 128};
  std::set<std::string> seen;
  int count = 0;
  for_each_layout(space, [&](const Layout& layout) {
    EXPECT_EQ(layout.world(), 16);
    EXPECT_EQ(layout.sequences * layout.micro_batches * layout.shard * layout.replicate, 128);
    ++count;
    seen.insert(fmt::format(
        "{} {} {} {} {} {} {} {} {} {} {} {} {} {}", layout.tensor, layout.context, layout.pipeline,
        layout.shard, layout.replicate, layout.sequence_parallel, static_cast<int>(layout.order),
        layout.chunks, layout.stage, layout.reduces_every_micro_step, layout.reshards,
        layout.prefetch_depth, layout.sequences, static_cast<int>(layout.again)));
  });
  EXPECT_EQ(std::ssize(seen), count);
  EXPECT_GT(count, 1000);
}

// 96 positions on 32 ranks are 3 each, which a ring's ranks can't halve.
TEST(Search, DividesPositionsAsTheContextMethodNeeds) {
  const auto most = [](const char* method) {
    const std::string set = std::string("parallelism.context_parallel_method=") + method;
    const SearchSpace space{
        .own = step_shape(resolved(kSearchRecipe, {"training.seq_length=96", set}).values),
        .ranks = 32,
        .per_machine = 8,
        .global_batch = 128};
    std::int64_t c = 0;
    for_each_layout(space, [&](const Layout& layout) { c = std::max(c, layout.context); });
    return c;
  };
  EXPECT_EQ(most("all_gather"), 32);
  EXPECT_EQ(most("ring"), 16);
}

// Groups need a reduction in each micro-step, at any stage.
TEST(Search, FindsStagesForGroupsOfTheBatch) {
  for (const char* stage : {"0", "1"}) {
    const ResolvedRecipe own = resolved(
        kSearchRecipe, {"run.device=cpu", "parallelism.batch_groups=2", "model.num_layers=2",
                        std::string("zero_optimization.stage=") + stage});
    const SearchResult result =
        search_layouts(own,
                       {.cluster = Cluster{.machines = 1, .ranks_per_machine = 16, .device = "cpu"},
                        .keep = {"parallelism", "zero_optimization.stage"},
                        .device_memory = std::int64_t{80} << 30},
                       gpu());
    EXPECT_FALSE(result.best.empty()) << stage;
  }
}

// If the bound exceeded the plan, a layout that fits could be dropped.
TEST(Search, LowerBoundsAreBelowExactPlans) {
  for (const Strings& sets : std::vector<Strings>{
           {},
           {"zero_optimization.stage=1"},
           {"zero_optimization.stage=2"},
           {"zero_optimization.stage=3"},
           {"activation_checkpointing.mode=full"},
           {"activation_checkpointing.mode=selective", "zero_optimization.stage=3"},
           {"parallelism.data_parallel_shard_degree=4", "parallelism.tensor_parallel_degree=4",
            "zero_optimization.stage=1"},
           {"parallelism.data_parallel_shard_degree=4", "parallelism.pipeline_parallel_degree=4",
            "zero_optimization.stage=1"},
           {"parallelism.data_parallel_shard_degree=8", "parallelism.context_parallel_degree=2",
            "zero_optimization.stage=3"},
           {"zero_optimization.stage=1", "optimizer.eight_bit_states=true"},
           {"zero_optimization.stage=1", "optimizer.type=sgd", "optimizer.momentum=0"},
           {"zero_optimization.stage=1", "optimizer.type=lion"},
           {"zero_optimization.stage=1", "mixed_precision.optimizer_state_dtype=bf16"},
           {"zero_optimization.stage=1", "mixed_precision.grad_accum_dtype=bf16",
            "mixed_precision.reduce_dtype=bf16"},
           {"zero_optimization.stage=3", "parallelism.data_parallel_shard_degree=4",
            "parallelism.data_parallel_replicate_degree=4",
            "zero_optimization.shard_optimizer_over_replicas=true"}}) {
    const ResolvedRecipe recipe = resolved(kSearchRecipe, sets);
    const double least = least_bytes(step_shape(recipe.values), false, false);
    const double exact = static_cast<double>(need(recipe, per_rank(0)));
    EXPECT_LE(least, exact) << fmt::format("{}", fmt::join(sets, " "));
    EXPECT_GE(least, 0.4 * exact) << fmt::format("{}", fmt::join(sets, " "));
  }
}

// The same of recipes with little but what is counted with care: a dense part that experts' ranks
// divide, latents, parameters on disk, and a pipeline with one micro-batch at a time.
TEST(Search, LowerBoundsAreBelowExactPlansOfExpertsLatentsOffloadAndLayerParallel) {
  const Strings mixture = {"moe.num_experts=16", "moe.ffn_hidden_size=64", "moe.layers=\"0001\"",
                           "parallelism.expert_parallel_degree=16", "training.seq_length=16"};
  const Strings latent = {"model.kv_lora_rank=64",     "model.q_lora_rank=64",
                          "model.qk_nope_head_dim=64", "model.qk_rope_head_dim=64",
                          "model.v_head_dim=64",       "model.ffn_hidden_size=64",
                          "model.vocab_size=64"};
  const Strings away = {"mixed_precision.param_dtype=f32",
                        "zero_optimization.stage=3",
                        "zero_optimization.offload_optimizer=cpu",
                        "zero_optimization.offload_param=cpu",
                        "training.seq_length=16",
                        "model.vocab_size=64",
                        "parallelism.data_parallel_shard_degree=2"};
  const Strings one_by_one = {"parallelism.pipeline_parallel_degree=16",
                              "parallelism.data_parallel_shard_degree=1",
                              "parallelism.pipeline_schedule=layer_parallel"};
  const auto with = [](Strings sets, const std::string& more) {
    sets.push_back(more);
    return sets;
  };
  for (const Strings& sets :
       {with(mixture, "zero_optimization.stage=1"), with(mixture, "zero_optimization.stage=3"),
        with(latent, "zero_optimization.stage=0"), with(latent, "training.micro_batch_size=4"),
        away, with(one_by_one, "training.micro_batch_size=4")}) {
    const ResolvedRecipe recipe = resolved(kSearchRecipe, sets);
    const StepShape step = step_shape(recipe.values);
    const double exact = static_cast<double>(need(recipe, per_rank(0)));
    const double least = least_bytes(step, step.disk_bytes > 0.0, false);
    EXPECT_LE(least, exact) << fmt::format("{}", fmt::join(sets, " "));
    EXPECT_GE(least, 0.3 * exact) << fmt::format("{}", fmt::join(sets, " "));
  }
}

// Each takes what a search for its ranks proposes, and trains.
void try_recipes(int first, int end) {
  const test::TempFolder folder(test::memory_folder());
  testing::write_recipe_data(folder);
  int num_run = 0;
  for (int number = first; number < end && !::testing::Test::HasFailure(); ++number) {
    testing::Random random(static_cast<std::uint64_t>(number));
    const testing::Settings settings = testing::legal_recipe(folder, "first", random);
    const std::string text = testing::recipe_text(settings);
    SCOPED_TRACE(fmt::format("recipe {}:\n{}", number, text));
    const ResolvedRecipe recipe = resolved(text);
    const Recipe& values = recipe.values;
    const bool is_refused =
        values.parallelism.parameter_servers > 0 || !key_without_times(values).empty();
    if (is_refused || testing::base_recipe(settings, folder)) continue;
    const std::int64_t own = need(recipe, per_rank(0));
    const SearchResult result =
        search_layouts(recipe,
                       {.cluster = Cluster{.machines = 1,
                                           .ranks_per_machine = recipe.values.world_size(),
                                           .device = "cpu",
                                           .memory_bytes = own},
                        .top = 2},
                       gpu());
    for (const FoundLayout& layout : result.best) {
      SCOPED_TRACE(layout.command());
      std::filesystem::remove_all(folder.file("first"));
      const ResolvedRecipe again = resolved(text, sets_of(layout));
      expect_same_mathematics(recipe.values, again.values);
      EXPECT_LE(need(again, per_rank(0)), own);
      ::testing::internal::CaptureStdout();
      std::string failure;
      try {
        train(again, cpu_machine());
      } catch (const TrainingError& error) {
        if (again.values.loss_scaling.mode == LossScaling::Mode::kNone) failure = error.what();
      } catch (const std::exception& error) {
        failure = error.what();
      }
      ::testing::internal::GetCapturedStdout();
      EXPECT_EQ(failure, "");
      ++num_run;
    }
  }
  EXPECT_GE(num_run, (end - first) / 2);
}

TEST(SearchOfRandomRecipes, ProposesOnlyWhatTrains) {
  try_recipes(0, 40);
}

TEST(SearchOfRandomRecipesSlow, ProposesOnlyWhatTrains) {
  try_recipes(1000, 1400);
}

}  // namespace
}  // namespace sherd::engine
