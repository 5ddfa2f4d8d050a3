/// What the processes of a run must have in common before step 0.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "checkpoint/store/disk.h"
#include "engine/recipe/recipe.h"
#include "engine/report/output_folder.h"
#include "sharding/processes/processes.h"

namespace sherd::engine {

/// What this process is about to do: program, instruction set, table of matmul algorithms, data and recipe, value by
/// value.
struct Fact {
  std::string name, value;
};
std::vector<Fact> facts_of_run(const Recipe& recipe, std::uint64_t data_fingerprint);

/// Errors   UsageError on every process, with the first fact that isn't the same on all, if there is one.
void require_same(sharding::Processes& processes, const std::vector<Fact>& facts);

/// The run's folder: process 0 makes and locks it, and each other process shows that it sees the same.
/// Errors   those of OutputFolder; UsageError on every process if one writes elsewhere.
OutputFolder shared_output_folder(sharding::Processes* processes, checkpoint::Disk& disk,
                                  const std::string& path);

}  // namespace sherd::engine
