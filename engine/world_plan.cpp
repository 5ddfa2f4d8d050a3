#include "engine/world_plan.h"

#include <array>
#include <map>

#include "core/error.h"
#include "engine/launch.h"
#include "optim/muon.h"

namespace sherd::engine {
namespace {

/// What of a rank's plan isn't the same on all ranks: nothing but the second moments that Muon
/// keeps, by kind of unit (blocks are all alike): embedding, block and head.
using Peculiarity = std::array<std::int64_t, 3>;

std::vector<Peculiarity> peculiarities(const TrainingOptions& options, int world_size) {
  std::vector<Peculiarity> ranks(static_cast<std::size_t>(world_size), Peculiarity{});
  TrainingOptions one_block = options;
  one_block.model.num_layers = 1;
  const auto units = plan_units(one_block, world_size);
  CHECK(units.size() <= 3, "a model of one block in {} units", units.size());
  for (std::size_t unit = 0; unit < units.size(); ++unit) {
    const std::vector<std::int64_t> numels = optim::second_moment_numels(units[unit]);
    for (std::size_t rank = 0; rank < ranks.size(); ++rank) ranks[rank][unit] = numels[rank];
  }
  return ranks;
}

}  // namespace

int compute_threads(const Recipe& recipe) {
  return launch_options(recipe).compute_threads();
}

WorldPlan::WorldPlan(const TrainingOptions& options, MemoryRequest request) {
  const int world_size = request.world_size;
  const bool ranks_differ = options.optimizer.type == optim::OptimizerType::kMuon &&
                            options.placement.optimizer_sharded && world_size > 1;
  const auto rows = ranks_differ ? peculiarities(options, world_size) : std::vector<Peculiarity>(1);
  std::map<Peculiarity, std::size_t> known;
  group_of_rank_.reserve(static_cast<std::size_t>(world_size));
  for (int rank = 0; rank < world_size; ++rank) {
    // Most ranks are like the one before.
    if (rank == 0 || (ranks_differ && rows[rank] != rows[rank - 1])) {
      const auto [at, is_new] = known.emplace(rows[rank], groups_.size());
      request.rank = rank;
      if (is_new) {
        groups_.push_back(
            {rank, 0, plan_memory(options, request), plan_host_memory(options, request)});
      }
      group_of_rank_.push_back(at->second);
    } else {
      group_of_rank_.push_back(group_of_rank_.back());
    }
    ++groups_[group_of_rank_.back()].num_ranks;
    const std::int64_t bytes = of(rank).arena_bytes();
    if (bytes > worst().arena_bytes()) worst_rank_ = rank;
    if (__builtin_add_overflow(all_arenas_bytes_, bytes, &all_arenas_bytes_)) {
      throw UsageError("{} ranks together need more bytes than 64 bits can count.", world_size);
    }
  }
}

WorldPlan plan_world(const Recipe& recipe, const Device& device) {
  return {training_options(recipe),
          {.world_size = static_cast<int>(recipe.world_size()),
           .num_threads = compute_threads(recipe),
           .saves = recipe.checkpoint.saves(),
           .device = device.kind,
           .deterministic = recipe.run.deterministic,
           .separate_memory = device.separate_memory}};
}

WorldPlan plan_world(const Recipe& recipe) {
  const DeviceKind kind = device_kind(recipe);
  return plan_world(recipe, {kind, kind == DeviceKind::kCuda, {}});
}

}  // namespace sherd::engine
