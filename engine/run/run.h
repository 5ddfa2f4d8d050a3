/// From a resolved recipe to a finished run.
#pragma once

#include <exception>
#include <functional>
#include <string>

#include "checkpoint/store/disk.h"
#include "engine/launch/device.h"
#include "engine/recipe/recipe.h"

namespace sherd::engine {

/// Ends the process if a rank has failed and `ranks`, such as "rank 1", don't end.
using OnStuck = std::function<void(const std::string& ranks, const std::exception_ptr& failure)>;

/// Trains according to the recipe. Returns when the run has succeeded and its last checkpoint is
/// saved; otherwise throws a sherd::Error. Output without a reader is dropped.
void train(const ResolvedRecipe& recipe, const OnStuck& on_stuck = {});
/// The same for one of several processes, with its share of the ranks. Process 0 prints and writes
/// the files.
void train(const ResolvedRecipe& recipe, std::shared_ptr<sharding::Processes> processes,
           const OnStuck& on_stuck = {});
/// For tests: runs on `device` instead of the recipe's, and writes to `disk`.
void train(const ResolvedRecipe& recipe, std::shared_ptr<const Machine> machine,
           checkpoint::Disk& disk = checkpoint::posix_disk(), const OnStuck& on_stuck = {});

}  // namespace sherd::engine
