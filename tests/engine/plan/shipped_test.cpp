// Every recipe that ships plans, and so does one of a trillion parameters.

#include <filesystem>
#include <set>

#include "engine/training_step.h"
#include "tests/engine/plan/plan_support.h"

namespace sherd::engine {
namespace {

std::vector<std::string> shipped_recipes() {
  std::vector<std::string> paths;
  for (const auto& entry : std::filesystem::directory_iterator(SHERD_SOURCE_DIR "/recipes")) {
    if (entry.path().extension() == ".yaml") paths.push_back(entry.path().string());
  }
  return paths;
}

ResolvedRecipe shipped(const std::string& path, Strings sets = {}) {
  // data.path may come with --set alone; a plan reads no data.
  sets.push_back("data.path=nowhere");
  return resolved_file(path, sets);
}

TEST(ShippedRecipes, AllPlanAtEveryStage) {
  std::set<std::string> names;
  for (const std::string& path : shipped_recipes()) {
    const ResolvedRecipe recipe = shipped(path);
    names.insert(recipe.values.run.name);
    const PlanReport report = plan_report(recipe, per_rank(std::int64_t{80} << 30));
    EXPECT_EQ(report.stages.size(), 4u) << path;
    EXPECT_TRUE(report.fits()) << path;
    EXPECT_TRUE(report.largest_micro_batch) << path;
    EXPECT_TRUE(report.smallest_world) << path;
    EXPECT_TRUE(plan_text(report).find("fits: stage ") != std::string::npos);
  }
  for (const char* name : {"quickstart", "gpt2_124m", "llama_1b", "shakespeare_char_cpu"}) {
    EXPECT_TRUE(names.contains(name)) << name;
  }
}

// Live bytes of the largest phase are what no placement can do without.
TEST(ShippedRecipes, TheArenaIsWithinTwoPercentOfTheLowerBound) {
  int plans = 0;
  for (const std::string& path : shipped_recipes()) {
    for (const char* stage : {"0", "1", "2", "3"}) {
      for (const char* recompute : {"none", "selective", "full"}) {
        for (const char* optimizer : {"adamw", "lamb", "muon"}) {
          const ResolvedRecipe recipe =
              shipped(path, {std::string("zero_optimization.stage=") + stage,
                             std::string("activation_checkpointing.mode=") + recompute,
                             std::string("optimizer.type=") + optimizer});
          const WorldPlan world = plan_world(recipe.values);
          for (const WorldPlan::Group& group : world.groups()) {
            std::int64_t most_alive = 0;
            for (const Phase phase : {kInit, kForward, kLoss, kBackward, kUpdate, kEvaluation}) {
              std::int64_t alive = 0;
              for (const PlannedBuffer& buffer : group.plan.buffers()) {
                if ((buffer.spec.phases & phase) != 0) alive += buffer.spec.bytes();
              }
              most_alive = std::max(most_alive, alive);
            }
            EXPECT_EQ(group.plan.peak_bytes(), most_alive);
            EXPECT_LE(static_cast<double>(group.plan.arena_bytes()),
                      1.02 * static_cast<double>(most_alive))
                << path << ", stage " << stage << ", " << recompute << ", " << optimizer;
            ++plans;
          }
        }
      }
    }
  }
  EXPECT_GE(plans, 4 * 4 * 3 * 3);
}

TEST(TrillionParameters, ArePlannedOnSixteenThousandRanks) {
  for (const Strings& sets : {Strings{}, Strings{"optimizer.type=muon"}}) {
    const PlanReport report =
        plan_report(resolved(kTrillionRecipe, sets), per_rank(std::int64_t{80} << 30));
    EXPECT_NEAR(static_cast<double>(report.num_parameters), 1e12, 5e9);
    EXPECT_EQ(report.plan.world_size(), 16384);
    EXPECT_EQ(report.stages.size(), 4u);
    EXPECT_FALSE(report.fits());
    // Stage 0 holds 2 + 4 + 4 bytes per parameter and rank, and AdamW's 8 or Muon's 4.
    const auto at_rest = static_cast<double>(sum(report.stages[0].plan.worst().at_rest()));
    EXPECT_NEAR(at_rest / static_cast<double>(report.num_parameters), sets.empty() ? 18.0 : 14.0,
                0.1);
    EXPECT_FALSE(plan_page(report).empty());
  }
}

}  // namespace
}  // namespace sherd::engine
