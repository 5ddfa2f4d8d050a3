// Advice is taken here: every change that a plan proposes is applied to the recipe, as a person
// would, and must fit.

#include <set>

#include "tests/engine/plan/plan_support.h"

namespace sherd::engine {
namespace {

// Every way of being too large that a limit can make of a recipe, down to what nothing fits.
std::vector<std::int64_t> limits_below(std::int64_t need) {
  std::vector<std::int64_t> limits;
  for (int percent = 99; percent >= 3; percent -= 6) limits.push_back(need / 100 * percent);
  return limits;
}

void expect_changes_fit(const std::string& text, const Strings& sets, const DeviceLimit& limit,
                        std::set<std::string>& keys) {
  const ResolvedRecipe own = resolved(text, sets);
  const std::vector<Change> changes = cheapest_changes(own, limit);
  EXPECT_LE(changes.size(), 5u);
  for (std::size_t i = 0; i < changes.size(); ++i) {
    const Change& change = changes[i];
    const ResolvedRecipe taken = applied(text, sets, change);
    EXPECT_LE(need(taken, limit), limit.bytes) << change.command();
    EXPECT_EQ(need(taken, limit), change.needed_bytes) << change.command();
    EXPECT_EQ(taken.values.training.global_batch_size, own.values.training.global_batch_size)
        << change.command();
    EXPECT_EQ(taken.values.mixed_precision.param_dtype, own.values.mixed_precision.param_dtype);
    EXPECT_FALSE(change.settings.empty());
    for (const auto& [key, value] : change.settings) keys.insert(key);
  }
}

TEST(Advice, EveryChangeThatIsProposedFitsWhenItIsApplied) {
  std::set<std::string> keys;
  for (const Strings& sets :
       {Strings{}, Strings{"zero_optimization.stage=1"},
        Strings{"zero_optimization.stage=2", "zero_optimization.grad_sync=boundary"},
        Strings{"zero_optimization.stage=3", "zero_optimization.reshard_after_forward=false",
                "zero_optimization.prefetch_depth=3"},
        Strings{"zero_optimization.stage=3", "optimizer.type=muon",
                "mixed_precision.param_dtype=bf16", "activation_checkpointing.mode=full"},
        Strings{"checkpoint.interval=1"}}) {
    for (const bool shared : {false, true}) {
      const ResolvedRecipe recipe = resolved(kSmallRecipe, sets);
      const std::int64_t whole = need(recipe, shared ? together(0) : per_rank(0));
      for (const std::int64_t bytes : limits_below(whole)) {
        expect_changes_fit(kSmallRecipe, sets, shared ? together(bytes) : per_rank(bytes), keys);
      }
    }
  }
  EXPECT_EQ(keys, (std::set<std::string>{
                      "activation_checkpointing.mode", "checkpoint.staging_mib",
                      "parallelism.data_parallel_shard_degree", "training.micro_batch_size",
                      "zero_optimization.grad_sync", "zero_optimization.offload_optimizer",
                      "zero_optimization.offload_param", "zero_optimization.prefetch_depth",
                      "zero_optimization.reshard_after_forward", "zero_optimization.stage"}))
      << "the limits above ask for every kind of change";
}

// Lamb's state can't be on disk, so the largest change has everything else.
TEST(Advice, LeavesOutWhatTheRulesRefuse) {
  const Strings sets = {"optimizer.type=lamb"};
  const Strings all = {"zero_optimization.stage=3", "training.micro_batch_size=1",
                       "activation_checkpointing.mode=full", "zero_optimization.prefetch_depth=0"};
  Strings furthest = sets;
  furthest.insert(furthest.end(), all.begin(), all.end());
  const auto limit = per_rank(need(resolved(kSmallRecipe, furthest), per_rank(0)));
  const auto changes = cheapest_changes(resolved(kSmallRecipe, sets), limit);
  ASSERT_EQ(changes.size(), 1u);
  EXPECT_EQ(changes[0].needed_bytes, limit.bytes);
  EXPECT_EQ(need(applied(kSmallRecipe, sets, changes[0]), limit), limit.bytes);
}

// At stages below 3, the optimizer's state alone can be on disk, and two changes can be enough.
TEST(Advice, CombinesAChangeWithTheLastStrategyThatTheRulesAllow) {
  const Strings sets = {"zero_optimization.stage=1", "training.micro_batch_size=1"};
  Strings both = sets;
  both.insert(both.end(),
              {"activation_checkpointing.mode=full", "zero_optimization.offload_optimizer=nvme"});
  const auto limit = per_rank(need(resolved(kSmallRecipe, both), per_rank(0)));
  bool found = false;
  for (const Change& change : cheapest_changes(resolved(kSmallRecipe, sets), limit)) {
    found |= change.summary() ==
             "activation_checkpointing.mode: full with zero_optimization.offload_optimizer: nvme";
  }
  EXPECT_TRUE(found);
}

// What is expected is found by hand: with everything as far as it goes and one rank more or less
// than that, there is a limit just below which nothing helps.
TEST(Advice, SaysNothingWhereNothingFits) {
  const ResolvedRecipe recipe = resolved(kSmallRecipe);
  EXPECT_TRUE(cheapest_changes(recipe, per_rank(1 << 20)).empty());
  EXPECT_FALSE(largest_micro_batch(recipe, per_rank(1 << 20)));
  EXPECT_FALSE(smallest_world(recipe, per_rank(1 << 20)));
  const std::string error =
      usage_error_of([&] { check_fits(recipe, plan_world(recipe.values), per_rank(1 << 20)); });
  EXPECT_NE(error.find("No change of stage, micro-batch, recompute, prefetch depth"),
            std::string::npos)
      << error;
}

TEST(Advice, PutsTheCheapestFirstAndOtherRanksLast) {
  const ResolvedRecipe recipe = resolved(kSmallRecipe);
  const auto changes = cheapest_changes(recipe, per_rank(need(recipe, per_rank(0)) / 100 * 93));
  ASSERT_GE(changes.size(), 3u);
  bool ranks_before = false;
  double cost_before = 0.0;
  for (const Change& change : changes) {
    bool ranks = false;
    for (const auto& [key, value] : change.settings) {
      ranks |= key == "parallelism.data_parallel_shard_degree";
    }
    EXPECT_GE(ranks, ranks_before) << change.command();
    if (ranks == ranks_before) {
      EXPECT_GE(change.cost, cost_before) << change.command();
    }
    ranks_before = ranks;
    cost_before = change.cost;
  }
  // Sharding more costs no work, recompute does; half the micro-batch makes products less
  // efficient.
  EXPECT_EQ(changes[0].command(), "--set zero_optimization.stage=2");
  EXPECT_EQ(changes[1].command(), "--set activation_checkpointing.mode=selective");
  EXPECT_EQ(changes[2].command(), "--set training.micro_batch_size=8");
}

// By trying every divisor of the global batch, which is all that the recipe's rules allow.
TEST(Advice, TheLargestMicroBatchIsTheLargestThatFits) {
  for (const std::int64_t percent : {30, 60, 100, 250}) {
    const auto limit = per_rank(need(resolved(kSmallRecipe), per_rank(0)) / 100 * percent);
    std::int64_t expected = 0;
    for (const std::int64_t micro : {1, 2, 4, 8, 16}) {
      const auto recipe =
          resolved(kSmallRecipe, {"training.micro_batch_size=" + std::to_string(micro)});
      if (need(recipe, limit) <= limit.bytes) expected = micro;
    }
    const auto found = largest_micro_batch(resolved(kSmallRecipe), limit);
    EXPECT_EQ(found ? found->value : 0, expected) << percent;
    if (!found) continue;
    const auto taken = applied(kSmallRecipe, {}, found->change);
    EXPECT_EQ(taken.values.training.micro_batch_size, expected);
    EXPECT_EQ(taken.values.training.global_batch_size, 64);
    EXPECT_LE(need(taken, limit), limit.bytes);
  }
}

// Without a global batch any number of sequences may be taken: the one after must not fit.
TEST(Advice, WithoutAGlobalBatchTheLargestMicroBatchIsOneLessThanTheFirstThatDoesNotFit) {
  std::string text = kSmallRecipe;
  text.replace(text.find("global_batch_size: 64, "), 23, "");
  for (const std::int64_t mebibytes : {120, 200, 1000}) {
    const auto limit = per_rank(mebibytes << 20);
    std::int64_t expected = 0;
    for (std::int64_t micro = 1; micro <= 100; ++micro) {
      const auto recipe = resolved(text, {"training.micro_batch_size=" + std::to_string(micro)});
      if (need(recipe, limit) <= limit.bytes) expected = micro;
    }
    ASSERT_LT(expected, 100);
    const auto found = largest_micro_batch(resolved(text), limit);
    EXPECT_EQ(found ? found->value : 0, expected) << mebibytes << " MiB";
  }
}

TEST(Advice, TheSmallestWorldIsTheSmallestThatFitsWithTheSameBatch) {
  for (const char* stage : {"1", "3"}) {
    const Strings sets = {std::string("zero_optimization.stage=") + stage,
                          "training.micro_batch_size=1"};
    const auto on = [&](std::int64_t ranks) { return resolved(kSmallRecipe, sets, ranks); };
    for (const std::int64_t ranks : {1, 2, 4, 8, 16, 32, 64}) {
      const auto limit = per_rank(need(on(ranks), per_rank(0)));
      const auto found = smallest_world(on(4), limit);
      ASSERT_TRUE(found);
      std::int64_t expected = 0;
      for (const std::int64_t other : {64, 32, 16, 8, 4, 2, 1}) {
        if (need(on(other), limit) <= limit.bytes) expected = other;
      }
      EXPECT_EQ(found->value, expected) << "stage " << stage << ", room for " << ranks;
      EXPECT_EQ(applied(kSmallRecipe, sets, found->change).values.world_size(), expected);
    }
  }
}

TEST(Advice, ComparesTheStagesThatTheRecipeMayHaveAndNoOthers) {
  const auto stages_of = [](const Strings& sets) {
    std::vector<int> stages;
    for (const auto& [stage, recipe] : at_every_stage(resolved(kSmallRecipe, sets))) {
      EXPECT_EQ(recipe.values.zero_optimization.stage, stage);
      stages.push_back(stage);
    }
    return stages;
  };
  EXPECT_EQ(stages_of({}), (std::vector<int>{0, 1, 2, 3}));
  // bf16 sums accumulated in f32 can't be reduced at the boundary, which stages 0 and 1 do unless
  // told otherwise: the run refuses them.
  const Strings mixed = {"zero_optimization.stage=3", "mixed_precision.param_dtype=bf16",
                         "mixed_precision.reduce_dtype=bf16",
                         "mixed_precision.grad_accum_dtype=f32", "training.micro_batch_size=4"};
  std::vector<int> allowed;
  for (int stage = 0; stage <= 3; ++stage) {
    Strings sets = mixed;
    sets.push_back("zero_optimization.stage=" + std::to_string(stage));
    if (usage_error_of([&] { resolved(kSmallRecipe, sets); }) == "no error") {
      allowed.push_back(stage);
    }
  }
  EXPECT_LT(allowed.size(), 4u);
  EXPECT_EQ(stages_of(mixed), allowed);
}

}  // namespace
}  // namespace sherd::engine
