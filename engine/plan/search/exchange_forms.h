/// What each way to exchange less costs on given links: bytes that leave a machine, predicted time,
/// and what it does to results. For `sherd plan --cluster FILE --exchanges`.
///
/// Forms, each a change of the recipe (docs/slow_links.md, docs/local_updates.md):
///
///   replicas      a replica on each machine: only slices of gradients leave it
///   low rank      such replicas add factors of rank 4 (docs/power_sgd.md)
///   for Dion      such replicas add factors of its update (docs/optimizers.md)
///   sparse        such replicas add the largest elements, one in a hundred (docs/dgc.md); with SGD
///   blocks        gathers and reductions in int8 or int4 blocks; of replicas, too
///   slices        such replicas divide the optimizer's state, and send slices in blocks
///   local         a replica on each machine that trains apart for 50 or 500 steps
///
/// Those with replicas are left out of a pipeline's recipe: its ranks on one machine are a stage's.
///
/// Errors   UsageError as predicted_step: another number of ranks, a training without times; a
///          recipe that can't use the cluster's device.
#pragma once

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "engine/launch/cpu_rates.h"
#include "engine/plan/planned_recipe.h"
#include "engine/recipe/cluster_file.h"

namespace sherd::engine {

struct ExchangeForm {
  std::string name, results;  ///< "int8 both ways"; "rounds"
  std::vector<std::pair<std::string, std::string>> settings{};
  std::string refused{};       ///< why the recipe can't have it; what follows is then 0
  double across_bytes = -1.0;  ///< that leave the machine that sends most, in a step; -1: unknown
  double seconds = 0.0;        ///< of a step, predicted
  double tokens_per_s = 0.0;
};

/// The recipe as it is first. On CPUs, times are of a processor with the rates `cpus`.
std::vector<ExchangeForm> exchange_forms(const ResolvedRecipe& recipe, const Cluster& cluster,
                                         const std::optional<CpuRates>& cpus);

std::string exchange_forms_text(const std::vector<ExchangeForm>& forms);
std::string exchange_forms_json(const std::vector<ExchangeForm>& forms);

}  // namespace sherd::engine
