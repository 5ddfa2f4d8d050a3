/// Everything that `sherd plan` reports about a recipe, without data, device or a run: the memory
/// of each rank in each phase, whether it fits, what would fit, and what a step sends. Text, JSON
/// and page show the figures of one report.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "engine/plan/advice.h"
#include "engine/plan/exchange_plan.h"
#include "engine/plan/expert_plan.h"
#include "engine/plan/machine_traffic.h"
#include "engine/plan/memory_report.h"
#include "engine/plan/offload_report.h"
#include "sharding/mesh/traffic.h"

namespace sherd::engine {

/// The recipe at one stage, on the same ranks with the same batch.
struct StageReport {
  int stage = 0;
  WorldPlan plan;
  std::int64_t needed_bytes = 0;  ///< to compare with the limit
  std::int64_t sent_bytes = 0;    ///< in a step, by the rank that sends most
};

struct PlanReport {
  PlannedRecipe planned;
  std::int64_t num_parameters = 0;
  std::int64_t num_trained = 0;  ///< of them; the others are frozen
  WorldPlan plan;
  DeviceLimit limit;
  std::int64_t needed_bytes = 0;    ///< to compare with the limit
  std::vector<StageReport> stages;  ///< all possible stages
  std::vector<Change> changes;      ///< that fit, if the recipe doesn't (advice.h)
  std::optional<ValueLimit> largest_micro_batch, smallest_world;
  std::vector<sharding::Sent> sent;  ///< in a step, by the rank that sends most
  std::int64_t sent_bytes = 0;
  sharding::Traffic sent_by_server;        ///< if there are parameter servers; `sent`: by a worker
  std::optional<ExpertPlan> experts;       ///< if ranks divide experts
  std::optional<ExchangePlan> exchanges;   ///< if replicas train apart; not in `sent`
  std::optional<OffloadReport> offloaded;  ///< if some state is elsewhere between uses
  std::optional<MachineTraffic> machines;  ///< if the ranks per machine are known

  bool fits() const { return engine::fits(plan, limit); }
};

/// `ranks_per_machine`: 0 if unknown. `rates`: of the drive with state on disk, if known.
PlanReport plan_report(const ResolvedRecipe& recipe, const DeviceLimit& limit,
                       int ranks_per_machine = 0, const std::optional<DiskRates>& rates = {});

std::string plan_text(const PlanReport& report);
std::string plan_json(const PlanReport& report);  ///< one object; ends with a newline
/// One self-contained HTML page: bars of the stages, a step's phases, the same tables.
std::string plan_page(const PlanReport& report);

/// "3.08 M parameters, stage 3 on 2 ranks, ..."
std::string plan_headline(const PlanReport& report);
/// Which rank's bytes `sent` counts: "each rank", ...
std::string sender_text(const PlanReport& report);

}  // namespace sherd::engine
