/// The runs in a folder, as `sherd runs` lists them: how far each is, and what its last lines say.
///
/// Everything comes from a run's own files (recipe.yaml, metrics.jsonl, .lock, checkpoints), which are
/// only read. What can't be known is absent.
#pragma once

#include <cstdint>
#include <ctime>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace sherd::engine {

struct RunSummary {
  enum class State {
    kRunning,   ///< a process on this machine has the folder
    kFinished,  ///< its last step is the recipe's max_steps, or early stopping ended it there
    kStopped,   ///< neither: stopped, ended by an error, or running on another machine
  };
  std::string folder;
  State state = State::kStopped;
  std::int64_t step = 0;  ///< steps done
  bool stopped_early = false;
  std::optional<std::int64_t> max_steps;
  std::optional<double> loss, val_loss, tokens_per_s;  ///< the last ones
  std::optional<std::int64_t> checkpoint;              ///< of the newest: steps done
  std::time_t last_line = 0;                           ///< when metrics.jsonl was last written
};

/// `folder` itself if it is a run's, else those of its folders that are; the one that wrote last first.
/// Cost     of metrics.jsonl the last 4 MiB are read; a validation loss before them isn't found.
/// Errors   UsageError if there is no such folder.
std::vector<RunSummary> list_runs(const std::string& folder);

/// "running", "finished" or "stopped".
std::string_view name_of(RunSummary::State state);

/// At most 80 columns wide, if the folders' names are short.
std::string runs_text(const std::vector<RunSummary>& runs, std::time_t now);
/// A JSON object for each run, a line each.
std::string runs_json(const std::vector<RunSummary>& runs);

}  // namespace sherd::engine
