/// From a resolved recipe to a finished run.
#pragma once

#include <exception>
#include <functional>
#include <string>

#include "checkpoint/store/disk.h"
#include "engine/launch/device.h"
#include "engine/recipe/recipe.h"

namespace sherd::engine {

/// Ends the process where a rank has failed and `ranks`, such as "rank 1", don't come to their end.
using OnStuck = std::function<void(const std::string& ranks, const std::exception_ptr& failure)>;

/// Trains as the recipe says; returns when the run has ended well, with the checkpoint that it
/// promised, throws a sherd::Error otherwise. Output that nobody reads any more is dropped.
void train(const ResolvedRecipe& recipe, const OnStuck& on_stuck = {});
/// In each of several processes, with its share of the ranks. Process 0 prints and writes the files.
void train(const ResolvedRecipe& recipe, std::shared_ptr<sharding::Processes> processes,
           const OnStuck& on_stuck = {});
/// On `device` instead of what the recipe names, and on `disk` all that it writes; for tests.
void train(const ResolvedRecipe& recipe, std::shared_ptr<const Machine> machine,
           checkpoint::Disk& disk = checkpoint::posix_disk(), const OnStuck& on_stuck = {});

}  // namespace sherd::engine
