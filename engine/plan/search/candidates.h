/// Every layout that a recipe could have on a number of ranks, as numbers: no recipe is resolved and
/// no memory planned. What the sizes alone rule out is left out; the recipe's rules decide later.
#pragma once

#include <functional>
#include <set>
#include <string>
#include <vector>

#include "engine/plan/time/step_shape.h"

namespace sherd::engine {

/// Keys that a search may change. A candidate differs from the recipe in nothing else; each changes
/// memory and time, and results only by rounding.
enum class SearchKey {
  kTensor,
  kSequenceParallel,
  kContext,
  kPipeline,
  kSchedule,
  kChunks,
  kShard,
  kReplicate,
  kExpert,
  kStage,
  kGradSync,
  kReshard,
  kPrefetchDepth,
  kMicroBatch,
  kRecompute,
  kOffloadOptimizer,
  kOffloadUpdate,
};
std::string_view key_of(SearchKey key);  ///< "parallelism.tensor_parallel_degree"
const std::vector<SearchKey>& all_search_keys();

struct SearchSpace {
  StepShape own;           ///< the recipe's
  std::int64_t ranks = 1;  ///< of the world
  std::int64_t per_machine = 1;
  std::int64_t global_batch = 1;
  std::set<SearchKey> kept{};  ///< keep the recipe's values
  bool offload = false;  ///< candidates with the optimizer's state on disk, instead of without

  bool keeps(SearchKey key) const { return kept.contains(key); }
};

/// Calls `visit` with each.
void for_each_layout(const SearchSpace& space, const std::function<void(const Layout&)>& visit);

/// Bytes that each rank of a layout needs at least: weights, gradients and optimizer states, and
/// the activations that no recompute avoids. The exact plan (engine/plan/world_plan.h) is larger.
/// `shares_memory`: the mean of all ranks, which share one machine's memory.
double least_bytes(const StepShape& step, bool state_on_disk, bool shares_memory);

}  // namespace sherd::engine
