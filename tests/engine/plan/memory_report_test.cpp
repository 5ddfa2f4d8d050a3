// What a run says of its memory: whether it fits before the first step, and what was measured after
// the last.

#include "engine/plan/memory_report.h"

#include <cstring>
#include <nlohmann/json.hpp>

#include "core/arena.h"
#include "tests/engine/plan/plan_support.h"

namespace sherd::engine {
namespace {

using Json = nlohmann::json;

TEST(CheckFits, SaysNothingOfAPlanThatFitsToTheByte) {
  const ResolvedRecipe recipe = resolved(kSmallRecipe);
  const WorldPlan plan = plan_world(recipe.values);
  const std::int64_t arena = plan.worst().arena_bytes();
  EXPECT_FALSE(check_fits(recipe, plan, per_rank(arena)));
  EXPECT_FALSE(check_fits(recipe, plan, together(4 * arena)));
  EXPECT_THROW(check_fits(recipe, plan, per_rank(arena - 1)), UsageError);
  EXPECT_THROW(check_fits(recipe, plan, together(4 * arena - 1)), UsageError);
}

TEST(CheckFits, SaysWhatIsNeededWhatIsThereWhatIsMissingAndWhatFits) {
  const ResolvedRecipe recipe = resolved(kSmallRecipe);
  const WorldPlan plan = plan_world(recipe.values);
  const std::int64_t limit = plan.worst().arena_bytes() - (std::int64_t{34} << 20);
  const std::string error = usage_error_of([&] { check_fits(recipe, plan, per_rank(limit)); });
  for (const char* part :
       {"stage 0 on 4 ranks needs 517.4 MiB per rank (parameters 20.4, gradients 20.4, optimizer "
        "40.8, activations 431.6, ",
        "; the device has 483 MiB, 34 MiB too little.",
        " zero_optimization.stage: 2 needs 479 MiB."}) {
    EXPECT_NE(error.find(part), std::string::npos) << part << " in\n" << error;
  }
  EXPECT_EQ(error.find('\n'), std::string::npos);
  const std::string shared = usage_error_of([&] { check_fits(recipe, plan, together(1 << 30)); });
  EXPECT_NE(shared.find(", 2.0 GiB together; this machine has 1.0 GiB, 1.0 GiB too little."),
            std::string::npos)
      << shared;
}

TEST(CheckFits, OnlyWarnsIfTheRecipeAsksForIt) {
  const ResolvedRecipe recipe = resolved(kSmallRecipe, {"memory.on_exceed=warn"});
  const auto warning = check_fits(recipe, plan_world(recipe.values), per_rank(100 << 20));
  ASSERT_TRUE(warning);
  EXPECT_NE(warning->find("the device has 100 MiB"), std::string::npos) << *warning;
}

// Muon's ranks hold different numbers of elements. The block that predicts further tokens is of the
// last layer's kind, here the only one with experts.
TEST(WorldPlan, IsEveryRanksOwnPlanWithMuonAndMultiTokenPrediction) {
  for (const Strings& layers :
       {Strings{"model.num_layers=3", "moe.layers=\"01\"", "moe.num_experts=4",
                "moe.ffn_hidden_size=32", "model.ffn_hidden_size=160",
                "parallelism.data_parallel_shard_degree=6", "zero_optimization.stage=1",
                "training.global_batch_size=6"},
        Strings{"model.num_layers=5", "moe.layers=\"0001\"", "moe.num_experts=6",
                "moe.ffn_hidden_size=64", "model.ffn_hidden_size=32",
                "parallelism.data_parallel_shard_degree=8", "zero_optimization.stage=2",
                "training.global_batch_size=8"}}) {
    Strings sets = {"model.hidden_size=32", "mtp.num_layers=1", "optimizer.type=muon",
                    "training.micro_batch_size=1"};
    sets.insert(sets.end(), layers.begin(), layers.end());
    const PlannedRecipe planned(resolved(kSmallRecipe, sets).values);
    const WorldPlan world(planned.options, {.mesh = planned.mesh});
    for (int rank = 0; rank < world.world_size(); ++rank) {
      const MemoryPlan own = plan_memory(planned.options, {.mesh = planned.mesh, .rank = rank});
      EXPECT_EQ(world.of(rank).arena_bytes(), own.arena_bytes()) << rank;
      EXPECT_EQ(world.of(rank).by_phase(), own.by_phase()) << rank;
    }
  }
}

TEST(DeviceLimit, IsWhatWasAskedForElseTheRecipesElseTheMachines) {
  const ResolvedRecipe without = resolved(kSmallRecipe);
  const ResolvedRecipe with = resolved(kSmallRecipe, {"memory.device_memory=80GiB"});
  EXPECT_EQ(device_limit(with.values, 1000).bytes, 1000);
  EXPECT_EQ(device_limit(with.values).bytes, std::int64_t{80} << 30);
  EXPECT_FALSE(device_limit(with.values).shared);
  EXPECT_TRUE(device_limit(without.values).shared);
  EXPECT_GT(device_limit(without.values).bytes, 1 << 20);
}

// Takes every buffer of every rank's plan in an arena, goes through the phases, and reports. Pages
// are written, as a run would.
std::vector<MeasuredMemory> measure(const WorldPlan& plan, const std::vector<Phase>& phases,
                                    const BufferSpec* one_more = nullptr) {
  std::vector<MeasuredMemory> measured;
  for (int rank = 0; rank < plan.world_size(); ++rank) {
    std::unique_ptr<Allocator> memory;
    if (one_more && rank == 1) {
      memory = std::make_unique<HeapAllocator>();
      memory->enter(kInit);
    } else {
      memory = std::make_unique<Arena>(plan.of(rank));
    }
    std::vector<Buffer> buffers;
    for (const PlannedBuffer& buffer : plan.of(rank).buffers()) {
      buffers.push_back(memory->acquire(buffer.spec));
    }
    if (one_more && rank == 1) buffers.push_back(memory->acquire(*one_more));
    for (const Phase phase : phases) memory->enter(phase);
    const std::vector<BufferSpec> acquired = memory->acquired();
    for (std::size_t i = 0; i < buffers.size(); ++i) {
      const BufferSpec& spec = acquired[i];
      if ((spec.phases & phases.back()) == 0 || spec.numel == 0) continue;
      std::memset(buffers[i].tensor().data, 1, static_cast<std::size_t>(spec.bytes()));
    }
    measured.push_back(measured_memory(*memory));
  }
  return measured;
}

const std::vector<Phase> kWholeRun = {kInit,   kForward,    kLoss,    kBackward,
                                      kUpdate, kEvaluation, kBackward};

TEST(MemoryComparison, OfARunAsPlannedShowsNoDifference) {
  const WorldPlan plan = plan_world(
      resolved(kSmallRecipe, {"training.micro_batch_size=1", "zero_optimization.stage=3"}).values);
  const auto measured = measure(plan, kWholeRun);
  for (int rank = 0; rank < 4; ++rank) {
    EXPECT_TRUE(as_planned(plan.of(rank), measured[rank]));
    EXPECT_EQ(measured[rank].peak_bytes, plan.worst().peak_bytes());
  }
  const std::string text = memory_comparison(plan, measured, plan.all_arenas_bytes() + (64 << 20));
  EXPECT_NE(text.find("4 of 4 ranks as planned in every phase, to the byte\n"), std::string::npos)
      << text;
  EXPECT_EQ(text.find('+'), std::string::npos) << text;
  EXPECT_EQ(text.find("this run had no"), std::string::npos) << text;
}

TEST(MemoryComparison, NamesRankPhaseAndCategoryOfEveryDifferenceToTheByte) {
  const WorldPlan plan = plan_world(
      resolved(kSmallRecipe, {"training.micro_batch_size=1", "zero_optimization.stage=3"}).values);
  const BufferSpec more{"more", Category::kData, DType::kU8, 3, kLoss};
  const auto measured = measure(plan, kWholeRun, &more);
  EXPECT_FALSE(as_planned(plan.of(1), measured[1]));
  const std::string text = memory_comparison(plan, measured, plan.all_arenas_bytes());
  const std::int64_t data =
      plan.of(1).by_phase()[phase_index(kLoss)][static_cast<std::size_t>(Category::kData)];
  EXPECT_NE(
      text.find(fmt::format("rank 1, loss: data planned {} B, measured {} B\n", data, data + 3)),
      std::string::npos)
      << text;
  EXPECT_NE(text.find("3 of 4 ranks as planned"), std::string::npos) << text;
}

TEST(MemoryComparison, NamesPhasesThatNeverBegan) {
  const WorldPlan plan = plan_world(resolved(kSmallRecipe, {"training.micro_batch_size=1"}).values);
  const std::string text = memory_comparison(plan, measure(plan, {kInit, kForward}), 0);
  EXPECT_NE(text.find("this run had no loss, backward, update, evaluation\n"), std::string::npos)
      << text;
  EXPECT_NE(text.find("4 of 4 ranks as planned"), std::string::npos) << text;
}

TEST(MemoryComparison, CountsPagesThatWereWritten) {
  const WorldPlan plan = plan_world(resolved(kSmallRecipe, {"training.micro_batch_size=1"}).values);
  for (const MeasuredMemory& rank : measure(plan, kWholeRun)) {
    const std::int64_t written = plan.worst().live_bytes(kBackward);
    EXPECT_GE(rank.resident_bytes, written);
    EXPECT_LE(rank.resident_bytes, plan.worst().arena_bytes() + 4096);
  }
  const Arena untouched(plan.worst());
  EXPECT_EQ(untouched.resident_bytes(), 0);
}

TEST(MemoryJson, HoldsBothByRankAndCategory) {
  const WorldPlan plan =
      plan_world(resolved(kSmallRecipe, {"training.micro_batch_size=1", "optimizer.type=muon",
                                         "zero_optimization.stage=3"})
                     .values);
  std::vector<MeasuredMemory> measured = measure(plan, kWholeRun);
  measured[2].peak_bytes += 5;  // so that the two can't be one another's copies
  measured[2].peak_by_category[0] += 5;
  const Json json = Json::parse(memory_json(plan, measured, 123456789));
  const int worst = plan.worst_rank();
  EXPECT_EQ(json.at("predicted").at("peak_bytes"), plan.worst().peak_bytes());
  EXPECT_EQ(json.at("measured").at("peak_bytes"), measured[worst].peak_bytes);
  std::int64_t resident = 0;
  for (int rank = 0; rank < 4; ++rank) {
    const Json& predicted = json.at("predicted").at("by_rank").at(rank);
    const Json& found = json.at("measured").at("by_rank").at(rank);
    EXPECT_EQ(predicted.at("rank"), rank);
    EXPECT_EQ(predicted.at("peak_bytes"), plan.of(rank).peak_bytes());
    EXPECT_EQ(found.at("peak_bytes"), plan.of(rank).peak_bytes() + (rank == 2 ? 5 : 0));
    EXPECT_EQ(predicted.at("by_category") == found.at("by_category"), rank != 2);
    EXPECT_EQ(predicted.at("by_phase"), found.at("by_phase"));
    EXPECT_EQ(predicted.at("by_category").at("parameters").is_null(), false);
    resident += found.at("resident_bytes").get<std::int64_t>();
  }
  EXPECT_EQ(json.at("process").at("resident_peak_bytes"), 123456789);
  EXPECT_EQ(json.at("process").at("outside_plan_bytes"), 123456789 - resident);
}

}  // namespace
}  // namespace sherd::engine
