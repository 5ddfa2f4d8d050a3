/// The memory plan as text: a table, whether it fits, and a comparison with what a run measured.
///
/// A rank needs its arena: the live bytes of its peak phase, and the gaps that alignment leaves.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "engine/plan/world_plan.h"
#include "engine/recipe/recipe.h"
#include "sharding/mesh/rank.h"

namespace sherd::engine {

/// Bytes of every category at rest and in each phase, for the rank that needs most, and their sums:
///
///   rank 0 of 2 (all need the same)
///   MiB                  at rest     init  forward     loss  backward   update  evaluation
///   parameters              12.0     12.0     12.0 ...
///   live                    48.0     48.0    201.3 ...
///   gaps and idle                   153.4      0.1 ...
///   arena                           201.4    201.4 ...
std::string memory_table(const WorldPlan& plan);

/// One row of the table: a name, and bytes at rest and in each phase; empty cells have no value.
struct MemoryRow {
  MemoryRow(std::string name, std::optional<std::int64_t> at_rest)
      : name(std::move(name)), bytes{at_rest} {}
  std::string name;
  std::vector<std::optional<std::int64_t>> bytes;
};
std::vector<MemoryRow> memory_rows(const MemoryPlan& plan);
std::vector<std::string> memory_columns();  ///< "at rest", "init", "forward", ...
std::string worst_rank_text(const WorldPlan& plan);

/// "gathered parameters" for gathered_parameters.
std::string readable_name(Category category);

/// The memory that ranks must fit into.
struct DeviceLimit {
  std::int64_t bytes = 0;
  bool shared = false;  ///< by all ranks of the process; otherwise each rank has as much
  std::string origin;   ///< "--device-memory", "memory.device_memory", "this machine"
  int num_ranks = 0;    ///< that share it; 0: all ranks
  /// Of a rank that is a parameter server, if each rank has its own memory; 0: as the others.
  std::int64_t server_bytes = 0;
  int first_rank = 0;  ///< of those that share it, if they aren't all
};
/// `device_memory` (from --device-memory), else the recipe's memory.device_memory; both are per
/// rank. Else the memory of this machine or its control group, shared by all ranks, or the free
/// memory of its GPUs: of `gpus`, those of this process's ranks (Machine::devices_here), or if it
/// is empty of as many as there are ranks. Asking a GPU makes a context on it, which takes memory.
/// UsageError if the recipe needs a GPU, there is none, and no size is given.
DeviceLimit device_limit(const Recipe& recipe, std::optional<std::int64_t> device_memory = {},
                         std::vector<int> gpus = {});

/// Memory reserved on each GPU for libraries, which allocate after the arena. cuBLASLt's and
/// cuDNN's code takes 1 GiB. If each rank has its own GPU, an NCCL communicator takes 256 MiB, and
/// 64 MiB for each peer on a node (channel buffers). There are two for the `zero_ranks` that share
/// the training state, and one for each group in `further`, given by its number of ranks. An
/// estimate until measured on a GPU.
std::int64_t library_reserve_bytes(int zero_ranks, bool share_device,
                                   const std::vector<int>& further = {});

/// The bytes that must fit into `limit.bytes`: the largest arena of a rank, or the sum over all
/// ranks. Without parameter servers if they have a limit of their own.
std::int64_t needed_bytes(const WorldPlan& plan, const DeviceLimit& limit);

/// Whether all ranks fit: `needed_bytes`, and parameter servers that have a limit of their own.
bool fits(const WorldPlan& plan, const DeviceLimit& limit);

/// Whether a world of which only the first ranks are planned may still fit: false only if no further
/// rank can change that.
bool may_fit(const WorldPlan& first_ranks, const DeviceLimit& limit);

/// What parameter servers lack, in a sentence; none if they fit.
std::optional<std::string> server_problem(const Recipe& recipe, const WorldPlan& plan,
                                          const DeviceLimit& limit);

/// "stage 3 on 8 ranks needs 11.2 GiB per rank (parameters 0.6, gradients 0.6, ...)", with the sum
/// over ranks if the limit is shared.
std::string need_sentence(const Recipe& recipe, const WorldPlan& plan, const DeviceLimit& limit);

/// Call before step 0. If the plan doesn't fit and memory.on_exceed is abort, throws a UsageError
/// with what is missing and the cheapest change that fits; with warn, returns the same sentence.
std::optional<std::string> check_fits(const ResolvedRecipe& recipe, const WorldPlan& plan,
                                      const DeviceLimit& limit);

/// What one rank's allocator has counted by the rank's end.
struct MeasuredMemory {
  std::int64_t peak_bytes = 0;
  BytesByCategory peak_by_category{};
  BytesByPhase by_phase{};            ///< nothing in phases that never began
  std::int64_t resident_bytes = 0;    ///< of its arena: pages (also of 2 MiB) that were written to
  std::int64_t taken_bytes = 0;       ///< from the device, or from the host's address space
  std::int64_t host_bytes = 0;        ///< page-locked, if the device has its own memory
  int gpu = -1;                       ///< the rank's; -1 on a CPU
  std::int64_t gpu_bytes_in_use = 0;  ///< on that GPU by all processes, while the arena existed
};
MeasuredMemory measured_memory(const Allocator& memory);
/// The same with the host's part, and the rank's GPU memory in use.
MeasuredMemory measured_memory(const sharding::Rank& rank);

/// Whether every phase that began used exactly the planned bytes, in each category.
bool as_planned(const MemoryPlan& plan, const MeasuredMemory& measured);

/// The peak resident memory of this process so far (VmHWM).
std::int64_t peak_resident_bytes();

/// After a run, a comparison of predicted and measured memory: the largest rank by category, then
/// each rank and phase in which the two differ, phases that never began, and the process, with its
/// memory outside of the plan. `ranks[r]` belongs to rank r.
std::string memory_comparison(const WorldPlan& plan, const std::vector<MeasuredMemory>& ranks,
                              std::int64_t resident_bytes);
/// The same for <output_dir>/memory.json: predicted and measured, each with peak_bytes (of the
/// largest rank), by_category and by_rank; and process. Ends with a newline.
std::string memory_json(const WorldPlan& plan, const std::vector<MeasuredMemory>& ranks,
                        std::int64_t resident_bytes);

}  // namespace sherd::engine
