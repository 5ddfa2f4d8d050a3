/// What a recipe needs, computed before anything is allocated: memory of each rank, to the byte, and
/// what the ranks send to each other. A trainer allocates exactly the planned bytes.
///
///   const sherd::Plan plan = sherd::plan(recipe);
///   if (!plan.fits) std::printf("%lld bytes are needed\n", (long long)plan.needed_bytes);
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "sherd/export.h"
#include "sherd/recipe.h"

namespace sherd::SHERD_ABI {

/// All sizes are in bytes.
struct RankMemory {
  std::int64_t device_bytes = 0;  ///< allocated on the rank's device; on CPUs, all of its memory
  std::int64_t host_bytes = 0;    ///< on a GPU: page-locked memory of the host
  std::int64_t disk_bytes = 0;    ///< of state that is kept in a file
};

struct Plan {
  std::int64_t num_parameters = 0;
  std::int64_t num_trained_parameters = 0;  ///< the others are frozen
  std::vector<RankMemory> ranks{};          ///< ranks[r] belongs to rank r
  int worst_rank = 0;                       ///< the one that needs most, the first of several
  /// The worst rank's memory at its peak, by what it is for: "parameters", "gradients", ...
  std::vector<std::pair<std::string, std::int64_t>> peak_by_category{};
  /// To compare with `limit_bytes`: the sum over the ranks that share memory, or one rank's.
  std::int64_t needed_bytes = 0;
  std::int64_t limit_bytes = 0;
  bool fits = false;
  std::int64_t sent_bytes = 0;  ///< in a training step, by the rank that sends most
  std::string json{};           ///< what `sherd plan --json` prints
  std::string text{};           ///< what `sherd plan` prints
};

struct PlanOptions {
  /// Memory of one rank's device. 0: the recipe's memory.device_memory, or this machine's.
  std::int64_t device_memory_bytes = 0;
  /// Also plan what machines of that many ranks send to each other. 0: don't.
  int ranks_per_machine = 0;
};

/// Reads no data, so data.path may be missing. If stages of the data have other shapes, the plan is
/// of the stage that needs the most memory.
/// Errors   UsageError: those of Recipe::check; a recipe for GPUs without a size on a machine that
///          has none
SHERD_API Plan plan(const Recipe& recipe, const PlanOptions& options = {});

}  // namespace sherd::SHERD_ABI
