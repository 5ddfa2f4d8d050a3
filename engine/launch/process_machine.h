/// What ranks of several processes run on. On CPUs, started by mpirun: the processors of one machine or more;
/// each process has as many ranks as the others, as threads. On GPUs: one rank in each process.
///
/// Processes on one machine share its cores and its memory. Where mpirun has bound them to cores, these
/// are shared.
#pragma once

#include "engine/launch/machine.h"
#include "engine/recipe/recipe.h"

namespace sherd::engine {

/// Every process calls it.
/// Errors   UsageError: the recipe's ranks can't be shared evenly by the processes, or these can't do what they
///          were started for.
std::shared_ptr<const Machine> process_machine(std::shared_ptr<sharding::Processes> processes,
                                               const Recipe& recipe);

}  // namespace sherd::engine
