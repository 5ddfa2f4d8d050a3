/// What a recipe keeps on disk, or for GPUs on the host, between uses: how much, what a step moves,
/// and how much a drive is written in a run.
#pragma once

#include <optional>
#include <string>

#include "engine/plan/world_plan.h"

namespace sherd::engine {

/// Bytes per second of a drive: engine/offload/disk_rate.h measures them.
struct DiskRates {
  double read = 0.0, write = 0.0;
};

struct OffloadReport {
  int rank = 0;               ///< the one that needs the most memory
  bool on_host = false;       ///< in the host's memory; then there are no files
  bool host_updates = false;  ///< whose cores update it
  BytesByCategory at_rest{};  ///< its state there
  std::int64_t file_bytes = 0;
  bool has_second_places = false;   ///< for what saves still need
  std::int64_t all_file_bytes = 0;  ///< of all ranks
  DiskTraffic step;                 ///< of this rank
  DiskTraffic all_step;             ///< of all ranks
  std::int64_t max_steps = 0;       ///< 0: unknown
  std::optional<DiskRates> rates;

  /// Seconds in which a drive moves a step's bytes of all ranks, each way on its own.
  std::optional<double> step_seconds() const;
};

/// None if everything is in memory.
std::optional<OffloadReport> offload_report(const PlannedRecipe& planned, const WorldPlan& world,
                                            const std::optional<DiskRates>& rates);
std::string offload_text(const OffloadReport& plan);
/// "on disk, each rank: optimizer 1.2 GiB"; of a rank's plan_offload.
std::string offloaded_line(const MemoryPlan& offloaded, bool on_host);

}  // namespace sherd::engine
