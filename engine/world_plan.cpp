#include "engine/world_plan.h"

#include <map>

#include "core/error.h"
#include "engine/launch.h"
#include "optim/muon.h"

namespace sherd::engine {
namespace {

// What of a rank's plan isn't the same on all ranks: nothing but the second moments that Muon
// keeps, by kind of unit (blocks are all alike).
std::vector<std::int64_t> peculiarity_of(const std::vector<sharding::UnitPlan>& units, int rank) {
  std::vector<std::int64_t> numels;
  for (const sharding::UnitPlan& unit : units) {
    numels.push_back(optim::second_moment_numel(unit, rank));
  }
  return numels;
}

}  // namespace

int compute_threads(const Recipe& recipe) {
  LaunchOptions launch;
  launch.world_size = static_cast<int>(recipe.world_size());
  launch.threads_per_rank = static_cast<int>(recipe.run.num_threads);
  return launch.compute_threads();
}

WorldPlan::WorldPlan(const TrainingOptions& options, MemoryRequest request) {
  const int world_size = request.world_size;
  const bool ranks_differ = options.optimizer.type == optim::OptimizerType::kMuon &&
                            options.placement.optimizer_sharded && world_size > 1;
  TrainingOptions one_block = options;
  one_block.model.num_layers = 1;
  const auto units = plan_units(one_block, world_size);
  std::map<std::vector<std::int64_t>, std::size_t> known;
  for (int rank = 0; rank < world_size; ++rank) {
    const auto [at, is_new] = known.emplace(
        ranks_differ ? peculiarity_of(units, rank) : std::vector<std::int64_t>{}, groups_.size());
    request.rank = rank;
    if (is_new) groups_.push_back({rank, 0, plan_memory(options, request)});
    ++groups_[at->second].num_ranks;
    group_of_rank_.push_back(at->second);
    const std::int64_t bytes = of(rank).arena_bytes();
    if (bytes > worst().arena_bytes()) worst_rank_ = rank;
    if (__builtin_add_overflow(all_arenas_bytes_, bytes, &all_arenas_bytes_)) {
      throw UsageError("{} ranks together need more bytes than 64 bits can count.", world_size);
    }
  }
}

WorldPlan plan_world(const Recipe& recipe) {
  return {training_options(recipe),
          {.world_size = static_cast<int>(recipe.world_size()),
           .num_threads = compute_threads(recipe),
           .saves = recipe.checkpoint.saves()}};
}

}  // namespace sherd::engine
