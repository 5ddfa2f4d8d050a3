/// Where a recipe's ranks run.
#pragma once

#include <memory>
#include <string>

#include "engine/launch/launch.h"
#include "engine/recipe/recipe.h"
#include "engine/train/layout/training_options.h"

namespace sherd::engine {

/// The device that `run.device` means on this machine; auto is a GPU if this program can use one.
/// Doesn't check that a named device exists, since plans are also made on machines without it.
DeviceTraits device_traits(const Recipe& recipe);

/// The recipe's options for GPUs.
CudaMachineOptions cuda_options(const Recipe& recipe);

/// A step of the recipe on that device. (TrainingOptions::adds_in_matmuls: on GPUs without
/// run.deterministic.)
TrainingOptions options_on_device(const Recipe& recipe);

/// Errors   as cpu_machine and cuda_machine.
std::shared_ptr<const Machine> choose_machine(const Recipe& recipe);

/// Compute threads of each rank, as a run on this machine would share its cores.
int compute_threads(const Recipe& recipe);

/// Launch options for `machine`, without memory plans.
LaunchOptions launch_options(const Recipe& recipe, std::shared_ptr<const Machine> machine);

/// "2 ranks with 4 compute threads each on 8 cores", "2 ranks on a GPU each: NVIDIA H200".
std::string device_line(const LaunchOptions& launch);

}  // namespace sherd::engine
