/// The machine for ranks in several processes. On CPUs, mpirun starts the processes on one or more
/// machines; each has the same number of ranks, as threads. On GPUs, each process has one rank.
///
/// Processes on one machine share its cores and memory; if mpirun has bound them to cores, those
/// cores.
#pragma once

#include "engine/launch/machine.h"
#include "engine/recipe/recipe.h"

namespace sherd::engine {

/// Called by every process.
/// Errors   UsageError: the recipe's ranks can't be divided evenly among the processes, or the
///          processes were started in a way that doesn't support the recipe.
std::shared_ptr<const Machine> process_machine(std::shared_ptr<sharding::Processes> processes,
                                               const Recipe& recipe);

}  // namespace sherd::engine
