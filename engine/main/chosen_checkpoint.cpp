#include "engine/main/chosen_checkpoint.h"

#include <fmt/format.h>

#include "core/error.h"
#include "engine/main/standard_streams.h"

namespace sherd::main {
namespace {

engine::ChosenCheckpoint chosen_with_notes(const std::string& path) {
  engine::ChosenCheckpoint chosen = engine::choose_checkpoint(path);
  for (const checkpoint::Refusal& refusal : chosen.refused) {
    print_error(fmt::format("note: {} is refused: {}", refusal.path, refusal.reason));
  }
  return chosen;
}

}  // namespace

engine::ChosenCheckpoint chosen_checkpoint(const std::string& path,
                                           const std::shared_ptr<sharding::Processes>& processes) {
  if (!processes) return chosen_with_notes(path);
  sharding::ControlLinks& links = processes->links();
  const bool is_first = processes->index() == 0;
  engine::ChosenCheckpoint chosen;
  if (is_first) chosen = chosen_with_notes(path);
  const std::string of_first = links.all_gather("the checkpoint's path", chosen.path)[0];
  if (!is_first) chosen = engine::choose_checkpoint(of_first);
  const auto saves = links.all_gather("which save a checkpoint is",
                                      chosen.held ? chosen.held->manifest().save_uuid : "");
  for (std::size_t process = 1; process < saves.size(); ++process) {
    if (saves[process] == saves[0]) continue;
    throw DataError("{}: isn't the same checkpoint for process 0 on {} and process {} on {}.",
                    of_first, processes->hosts()[0], process, processes->hosts()[process]);
  }
  return chosen;
}

}  // namespace sherd::main
