/// The memory plans of all ranks of a run. Ranks whose plans are equal are planned once, so a world
/// of thousands costs no more than one of a few.
///
/// Errors   UsageError if bytes overflow 64 bits.
#pragma once

#include <functional>
#include <vector>

#include "engine/plan/memory_plan.h"
#include "engine/plan/planned_recipe.h"

namespace sherd::engine {

/// What is kept of each rank's plan. A long pipeline has millions of buffers.
enum class PlanDetail { kBuffers, kSums };

class WorldPlan {
 public:
  /// Asked after each rank about those planned so far; false ends the plan there.
  using GoesOn = std::function<bool(const WorldPlan&)>;

  /// Plans all ranks; `request.rank` is ignored.
  WorldPlan(const TrainingOptions& options, MemoryRequest request,
            PlanDetail detail = PlanDetail::kBuffers, const GoesOn& goes_on = {});

  /// Ranks with equal plans.
  struct EqualRanks {
    int first_rank = 0;
    std::int64_t num_ranks = 0;
    MemoryPlan plan;
    MemoryPlan host;       ///< of host memory, if the device has its own memory
    MemoryPlan offloaded;  ///< of what is elsewhere between uses
  };

  int world_size() const { return static_cast<int>(kind_of_rank_.size()); }
  const std::vector<EqualRanks>& equal_ranks() const { return equal_ranks_; }
  const MemoryPlan& of(int rank) const { return equal_ranks_[kind_of_rank_[rank]].plan; }
  const MemoryPlan& host_of(int rank) const { return equal_ranks_[kind_of_rank_[rank]].host; }
  const MemoryPlan& offloaded_of(int rank) const {
    return equal_ranks_[kind_of_rank_[rank]].offloaded;
  }
  /// The rank that needs most, the first of several.
  int worst_rank() const { return worst_rank_; }
  /// The same of parameter servers, and of the others; -1: there are none.
  int worst_server() const { return worst_server_; }
  bool is_server(int rank) const { return rank >= num_workers_; }
  int worst_worker() const { return worst_worker_; }
  const MemoryPlan& worst() const { return of(worst_rank_); }
  /// The memory of all ranks together.
  std::int64_t all_arenas_bytes() const { return all_arenas_bytes_; }

 private:
  std::vector<EqualRanks> equal_ranks_;
  std::vector<std::size_t> kind_of_rank_;
  int num_workers_ = 0;
  int worst_rank_ = 0, worst_worker_ = -1, worst_server_ = -1;
  std::int64_t all_arenas_bytes_ = 0;
};

WorldPlan plan_world(const PlannedRecipe& planned, PlanDetail detail = PlanDetail::kBuffers,
                     const WorldPlan::GoesOn& goes_on = {});
/// Rank 0 alone: no world needs less.
MemoryPlan plan_first_rank(const PlannedRecipe& planned);

}  // namespace sherd::engine
