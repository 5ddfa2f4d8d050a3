/// Facts that all processes of a run must agree on before step 0.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "checkpoint/store/disk.h"
#include "engine/data/batcher.h"
#include "engine/recipe/recipe.h"
#include "engine/report/output_folder.h"
#include "sharding/processes/processes.h"

namespace sherd::engine {

/// The facts of this process: program, instruction set, table of matmul algorithms, data, and every
/// value of the recipe.
struct Fact {
  std::string name, value;
};
std::vector<Fact> facts_of_run(const Recipe& recipe,
                               const std::vector<data::StageFingerprint>& data);

/// Errors   UsageError on every process, with the first fact that differs, if any.
void require_same(sharding::Processes& processes, const std::vector<Fact>& facts);

/// The run's folder. Process 0 creates and locks it; the others prove that they see the same
/// folder.
/// Errors   as OutputFolder; UsageError on every process if one writes to another folder.
OutputFolder shared_output_folder(sharding::Processes* processes, checkpoint::Disk& disk,
                                  const std::string& path);

}  // namespace sherd::engine
