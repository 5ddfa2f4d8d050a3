/// A recipe's step as the time model takes it, and the rates of its devices.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "engine/plan/planned_recipe.h"
#include "engine/plan/time/rates.h"
#include "engine/plan/time/step_shape.h"
#include "engine/recipe/cluster_file.h"

namespace sherd::engine {

StepShape step_shape(const Recipe& recipe);
/// The parts of a recipe's shape that no search changes, for shapes of other layouts.
ModelSize model_size(const Recipe& recipe);

/// The GPUs of a cluster, with its links where it gives them; `assumed` names the others.
std::unique_ptr<StepRates> gpu_rates_of(const Cluster& cluster, bool allow_tf32);
/// This machine's processor, for ranks on CPUs: of `cluster`, or all of the recipe's here.
std::unique_ptr<StepRates> cpu_rates_of(const CpuRates& rates, const Recipe& recipe,
                                        const std::optional<Cluster>& cluster);
/// What is assumed of a GPU's host, if the recipe keeps state there.
std::vector<std::string> assumed_of_offload(const Recipe& recipe,
                                            const std::optional<Cluster>& cluster,
                                            const StepRates& rates);
/// Returns the rates of the devices of `cluster`. Without a cluster, returns the rates of the devices
/// that the recipe would use on this machine; an unknown GPU gets the rates of an H100. `cpus`: the
/// rates of this processor, where they are known; otherwise CPUs are measured (cpu_rates.h).
std::unique_ptr<StepRates> rates_for(const Recipe& recipe, const std::optional<Cluster>& cluster,
                                     const std::optional<CpuRates>& cpus = {});

}  // namespace sherd::engine
