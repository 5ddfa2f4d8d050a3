/// The runs in a folder, as `sherd runs` lists them: progress and last metrics.
///
/// Everything comes from a run's own files (recipe.yaml, metrics.jsonl, .lock, checkpoints), which
/// are only read. Unknown values are absent.
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
    kRunning,   ///< a process on this machine has locked the folder
    kFinished,  ///< it has done max_steps steps, or early stopping ended it
    kStopped,   ///< neither: stopped, ended by an error, or running on another machine
  };
  std::string folder;
  State state = State::kStopped;
  std::int64_t step = 0;  ///< steps done
  bool stopped_early = false;
  std::optional<std::int64_t> max_steps;
  std::optional<double> loss, val_loss, tokens_per_s;  ///< the last ones
  std::optional<std::int64_t> checkpoint;              ///< steps done in the newest
  std::time_t last_line = 0;                           ///< when metrics.jsonl was last written
};

/// `folder` itself if it is a run's folder, else its subfolders that are; the last one written to
/// is first.
/// Cost     reads the last 4 MiB of metrics.jsonl; an earlier validation loss isn't found.
/// Errors   UsageError if there is no such folder.
std::vector<RunSummary> list_runs(const std::string& folder);

/// "running", "finished" or "stopped".
std::string_view name_of(RunSummary::State state);

/// At most 80 columns wide, if the folders' names are short.
std::string runs_text(const std::vector<RunSummary>& runs, std::time_t now);
/// One JSON object per run, one per line.
std::string runs_json(const std::vector<RunSummary>& runs);

}  // namespace sherd::engine
