// Every recipe that ships plans, and so does one of a trillion parameters.

#include <filesystem>
#include <set>

#include "engine/train/from_recipe.h"
#include "engine/train/training_step.h"
#include "tests/engine/plan/plan_support.h"
#include "tests/where.h"

namespace sherd::engine {
namespace {

std::vector<std::string> shipped_recipes() {
  std::vector<std::string> paths;
  for (const auto& entry : std::filesystem::directory_iterator(SHERD_SOURCE_DIR "/recipes")) {
    if (entry.path().extension() == ".yaml") paths.push_back(entry.path().string());
  }
  return paths;
}

// For a recipe that takes its model from a folder: a folder with config.json alone.
std::string folder_of(const std::string& path) {
  const std::string name = std::filesystem::path(path).stem().string();
  const bool fine_tunes = name.starts_with("sft_") || name == "continue_pretraining";
  return SHERD_SOURCE_DIR "/tests/engine/plan/folders/" + (fine_tunes ? "smollm2_135m" : name);
}

ResolvedRecipe shipped(const std::string& path, Strings sets = {}) {
  if (std::filesystem::exists(folder_of(path))) sets.push_back("model.from=" + folder_of(path));
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
  for (const char* name :
       {"quickstart", "gpt2_124m", "llama_1b", "shakespeare_char_cpu", "gpt2_124m_h200",
        "llama_1b_h200", "llama_7b_8xh200", "shakespeare_char_h200", "smollm2_135m", "qwen3_0_6b",
        "llama32_1b", "gemma3_1b", "sft_lora", "sft_qlora", "sft_full", "continue_pretraining"}) {
    EXPECT_TRUE(names.contains(name)) << name;
  }
}

// Buffers that share a phase, two by two, can't share an address: what the largest set of such buffers
// takes no placement can do without. Those of one phase are such a set, but it may take three phases to
// keep three buffers apart.
std::int64_t lower_bound(const MemoryPlan& plan) {
  std::map<Phases, std::int64_t> bytes;
  for (const PlannedBuffer& buffer : plan.buffers())
    bytes[buffer.spec.phases] += buffer.spec.bytes();
  const std::vector<std::pair<Phases, std::int64_t>> sets(bytes.begin(), bytes.end());
  std::int64_t most = 0;
  for (std::uint32_t chosen = 0; chosen < 1u << sets.size(); ++chosen) {
    std::int64_t sum = 0;
    bool apart = true;
    for (std::size_t i = 0; i < sets.size(); ++i) {
      if ((chosen >> i & 1) == 0) continue;
      sum += sets[i].second;
      for (std::size_t k = 0; k < i; ++k) {
        apart &= (chosen >> k & 1) == 0 || (sets[i].first & sets[k].first) != 0;
      }
    }
    if (apart) most = std::max(most, sum);
  }
  return most;
}

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
          for (const WorldPlan::EqualRanks& group : world.equal_ranks()) {
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
                      1.02 * static_cast<double>(lower_bound(group.plan)))
                << path << ", stage " << stage << ", " << recompute << ", " << optimizer;
            ++plans;
          }
        }
      }
    }
  }
  EXPECT_GE(plans, 4 * 4 * 3 * 3);
}

// A world plans equal ranks once; which are equal, it must get right.
TEST(WorldPlan, HoldsForEveryRankWhatThatRankAloneWouldPlan) {
  std::size_t most_kinds = 0;
  for (const char* optimizer : {"adamw", "muon"}) {
    for (const char* stage : {"0", "1", "3"}) {
      for (const int ranks : {1, 3, 7, 64, 200}) {
        const ResolvedRecipe recipe = resolved(
            kSmallRecipe,
            {std::string("optimizer.type=") + optimizer,
             std::string("zero_optimization.stage=") + stage, "training.micro_batch_size=1",
             "checkpoint.interval=10", "training.global_batch_size=" + std::to_string(ranks)},
            ranks);
        const WorldPlan world = plan_world(recipe.values);
        std::int64_t all = 0, most = 0;
        for (int rank = 0; rank < ranks; ++rank) {
          const MemoryPlan alone = plan_memory(training_options(recipe.values),
                                               {.mesh = sharding::Mesh::sharded(ranks),
                                                .rank = rank,
                                                .num_threads = compute_threads(recipe.values),
                                                .saves = true});
          EXPECT_EQ(world.of(rank).by_phase(), alone.by_phase())
              << optimizer << ", stage " << stage << ", rank " << rank << " of " << ranks;
          EXPECT_EQ(world.of(rank).arena_bytes(), alone.arena_bytes());
          all += alone.arena_bytes();
          most = std::max(most, alone.arena_bytes());
        }
        EXPECT_EQ(world.all_arenas_bytes(), all);
        EXPECT_EQ(world.worst().arena_bytes(), most);
        most_kinds = std::max(most_kinds, world.equal_ranks().size());
      }
    }
  }
  EXPECT_GE(most_kinds, 3u) << "Muon's ranks differ";
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
