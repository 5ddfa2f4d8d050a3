#include "engine/run/run_list.h"

#include <fmt/format.h>
#include <sys/stat.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "checkpoint/store/committed.h"
#include "checkpoint/store/output_lock.h"
#include "core/error.h"
#include "engine/recipe/recipe.h"
#include "engine/report/metrics.h"

namespace sherd::engine {
namespace {

namespace fs = std::filesystem;
using State = RunSummary::State;

constexpr std::int64_t kTailBytes = std::int64_t{4} << 20;

bool is_run(const fs::path& folder) {
  std::error_code error;
  return fs::is_regular_file(folder / "recipe.yaml", error) ||
         fs::is_regular_file(folder / "metrics.jsonl", error);
}

std::optional<double> number(const nlohmann::json& line, const char* key) {
  const auto found = line.find(key);
  if (found == line.end() || !found->is_number()) return {};
  return found->get<double>();
}

void read_line(const std::string& text, RunSummary& run) {
  if (!may_be_metrics(text)) return;
  const nlohmann::json line = nlohmann::json::parse(text, nullptr, false);
  if (!line.is_object()) return;  // torn
  const auto step = line.find("step");
  if (step == line.end() || !step->is_number_integer()) return;
  if (const auto loss = number(line, "val_loss")) run.val_loss = loss;
  if (line.contains("stopped_early")) run.stopped_early = true;
  if (!line.contains("tokens_per_s")) return;
  run.stopped_early = false;  // it continued
  run.step = step->get<std::int64_t>();
  run.loss = number(line, "loss");
  run.tokens_per_s = number(line, "tokens_per_s");
}

void read_metrics(const std::string& path, RunSummary& run) {
  struct stat status {};
  if (::stat(path.c_str(), &status) != 0 || !S_ISREG(status.st_mode)) return;
  run.last_line = status.st_mtime;
  std::ifstream file(path, std::ios::binary);
  const std::int64_t begin = std::max<std::int64_t>(0, status.st_size - kTailBytes);
  file.seekg(begin);
  std::string line;
  if (begin > 0) std::getline(file, line);  // it began before
  while (std::getline(file, line)) read_line(line, run);
}

// Unknown for a recipe of another version, or whose model folder no longer exists.
std::optional<std::int64_t> max_steps_of(const std::string& path) try {
  return resolve_recipe({.path = path,
                         .text = {},
                         .sets = {},
                         .ranks = {},
                         .reads_data = false,
                         .is_kept = true})
      .values.training.max_steps;
} catch (const Error&) {
  return {};
}

RunSummary summary_of(const std::string& folder) {
  checkpoint::Disk& disk = checkpoint::posix_disk();
  RunSummary run;
  run.folder = folder;
  run.max_steps = max_steps_of(folder + "/recipe.yaml");
  read_metrics(folder + "/metrics.jsonl", run);
  try {
    const auto steps = checkpoint::committed_steps(disk, folder + "/checkpoints");
    if (!steps.empty()) run.checkpoint = steps.front();
  } catch (const DataError&) {
  }
  if (!checkpoint::holder_of(disk, folder).empty()) {
    run.state = State::kRunning;
  } else if (run.stopped_early || (run.max_steps && run.step >= *run.max_steps)) {
    run.state = State::kFinished;
  }
  return run;
}

std::string with_unit(double value) {
  if (value >= 1e6) return fmt::format("{:.3g}M", value / 1e6);
  if (value >= 1e3) return fmt::format("{:.3g}k", value / 1e3);
  return fmt::format("{:.0f}", value);
}

std::string loss_text(const std::optional<double>& loss) {
  return loss ? fmt::format("{:.4f}", *loss) : "-";
}

std::string age_text(std::time_t then, std::time_t now) {
  if (then == 0) return "-";
  const double seconds = std::max(0.0, std::difftime(now, then));
  if (seconds < 90) return fmt::format("{:.0f} s", seconds);
  if (seconds < 90 * 60) return fmt::format("{:.0f} min", seconds / 60);
  if (seconds < 36 * 3600) return fmt::format("{:.0f} h", seconds / 3600);
  return fmt::format("{:.0f} days", seconds / 86400);
}

}  // namespace

std::string_view name_of(State state) {
  switch (state) {
    case State::kRunning:
      return "running";
    case State::kFinished:
      return "finished";
    case State::kStopped:
      return "stopped";
  }
  __builtin_unreachable();
}

std::vector<RunSummary> list_runs(const std::string& folder) {
  std::error_code error;
  if (is_run(folder)) return {summary_of(folder)};
  fs::directory_iterator entries(folder, error);
  if (error) {
    throw UsageError("{}: {}; name a folder with runs, such as the one that holds run.output_dir.",
                     folder, error.message());
  }
  std::vector<RunSummary> runs;
  for (; !error && entries != fs::directory_iterator(); entries.increment(error)) {
    if (is_run(entries->path())) runs.push_back(summary_of(entries->path().string()));
  }
  std::sort(runs.begin(), runs.end(), [](const RunSummary& a, const RunSummary& b) {
    return a.last_line != b.last_line ? a.last_line > b.last_line : a.folder < b.folder;
  });
  return runs;
}

std::string runs_text(const std::vector<RunSummary>& runs, std::time_t now) {
  std::size_t widest = 3;
  for (const RunSummary& run : runs) widest = std::max(widest, run.folder.size());
  std::string text =
      fmt::format("{:<{}}  {:<8} {:>13} {:>8} {:>8} {:>7} {:>6} {:>8}\n", "run", widest, "state",
                  "step", "loss", "val loss", "tok/s", "saved", "ago");
  for (const RunSummary& run : runs) {
    const std::string steps = run.max_steps ? fmt::format("{}/{}", run.step, *run.max_steps)
                                            : fmt::format("{}", run.step);
    text += fmt::format("{:<{}}  {:<8} {:>13} {:>8} {:>8} {:>7} {:>6} {:>8}\n", run.folder, widest,
                        name_of(run.state), steps, loss_text(run.loss), loss_text(run.val_loss),
                        run.tokens_per_s ? with_unit(*run.tokens_per_s) : "-",
                        run.checkpoint ? fmt::format("{}", *run.checkpoint) : "-",
                        age_text(run.last_line, now));
  }
  return text;
}

std::string runs_json(const std::vector<RunSummary>& runs) {
  std::string text;
  for (const RunSummary& run : runs) {
    nlohmann::ordered_json line;
    line["folder"] = run.folder;
    line["state"] = name_of(run.state);
    line["step"] = run.step;
    if (run.max_steps) line["max_steps"] = *run.max_steps;
    if (run.loss) line["loss"] = *run.loss;
    if (run.val_loss) line["val_loss"] = *run.val_loss;
    if (run.tokens_per_s) line["tokens_per_s"] = *run.tokens_per_s;
    if (run.checkpoint) line["checkpoint"] = *run.checkpoint;
    if (run.last_line != 0) line["last_line"] = run.last_line;
    text += line.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";
  }
  return text;
}

}  // namespace sherd::engine
