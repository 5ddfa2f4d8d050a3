/// The memory plan in words and figures: a table of it, whether it fits, and beside it what a run
/// measured.
///
/// A rank's need is its arena: the live bytes of its peak phase and the gaps that alignment leaves.
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

/// The table's figures: a name, and bytes at rest and in each phase; nothing where a cell is empty.
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

/// What ranks have to fit into.
struct DeviceLimit {
  std::int64_t bytes = 0;
  bool shared = false;  ///< by all ranks of the process; otherwise each rank has as much
  std::string origin;   ///< "--device-memory", "memory.device_memory", "this machine"
  int num_ranks = 0;    ///< that share it; 0: the world
};
/// `device_memory` (a person's --device-memory), else the recipe's memory.device_memory, each for
/// one rank; else what this machine or its control group allows, shared by all ranks, or what its
/// GPUs have free. UsageError if the recipe wants a GPU, there is none, and nobody says its size.
DeviceLimit device_limit(const Recipe& recipe, std::optional<std::int64_t> device_memory = {});

/// What stays free on each GPU for what libraries take there after the arena: 1 GiB for cuBLASLt's and
/// cuDNN's code, and, where ranks have a GPU each, NCCL communicators of 256 MiB and 64 MiB for each peer
/// of a node (buffers of its channels): two for the `zero_ranks` that share the training state, and one for each of
/// `further` groups of so many ranks. A guess until it is measured on a GPU.
std::int64_t library_reserve_bytes(int zero_ranks, bool share_device,
                                   const std::vector<int>& further = {});

/// What has to fit into `limit`: the worst rank's arena, or all ranks' together.
std::int64_t needed_bytes(const WorldPlan& plan, const DeviceLimit& limit);

/// "stage 3 on 8 ranks needs 11.2 GiB per rank (parameters 0.6, gradients 0.6, ...)", with the sum
/// over ranks where the limit is shared.
std::string need_sentence(const Recipe& recipe, const WorldPlan& plan, const DeviceLimit& limit);

/// Before step 0. If the plan doesn't fit, with memory.on_exceed: abort a UsageError that says what
/// is missing and which change is the cheapest that fits; with warn the same sentence is returned.
std::optional<std::string> check_fits(const ResolvedRecipe& recipe, const WorldPlan& plan,
                                      const DeviceLimit& limit);

/// What one rank's allocator counted, when the rank has ended.
struct MeasuredMemory {
  std::int64_t peak_bytes = 0;
  BytesByCategory peak_by_category{};
  BytesByPhase by_phase{};  ///< nothing in phases that never began
  std::int64_t resident_bytes =
      0;  ///< of its arena: pages, also of 2 MiB, in which something was written
  std::int64_t taken_bytes = 0;       ///< of the device, or of the host's address space
  std::int64_t host_bytes = 0;        ///< page-locked beside it, where the device's memory is apart
  int gpu = -1;                       ///< the rank's; -1 on a CPU
  std::int64_t gpu_bytes_in_use = 0;  ///< of that GPU by everybody, while the rank's arena stood
};
MeasuredMemory measured_memory(const Allocator& memory);
/// The same with the host's part, and what the rank's GPU says.
MeasuredMemory measured_memory(const sharding::Rank& rank);

/// Whether every phase that began held what was planned for it, to the byte and by category.
bool as_planned(const MemoryPlan& plan, const MeasuredMemory& measured);

/// The most that this process has had resident so far (VmHWM).
std::int64_t peak_resident_bytes();

/// After a run, predicted and measured side by side: the worst rank by category, then each rank and
/// phase where the two differ, phases that never began, and the process, with what it holds outside
/// of the plan. `ranks[r]` is rank r's.
std::string memory_comparison(const WorldPlan& plan, const std::vector<MeasuredMemory>& ranks,
                              std::int64_t resident_bytes);
/// The same for <output_dir>/memory.json: predicted and measured, each with peak_bytes (the worst
/// rank's), by_category and by_rank; and process. Ends with a newline.
std::string memory_json(const WorldPlan& plan, const std::vector<MeasuredMemory>& ranks,
                        std::int64_t resident_bytes);

}  // namespace sherd::engine
