#include "engine/data/files/run_files.h"

#include <algorithm>
#include <array>
#include <system_error>

namespace sherd::data {
namespace {

namespace fs = std::filesystem;

constexpr std::array<std::string_view, 13> kOwnNames = {
    "recipe.yaml",          "metrics.jsonl", "memory.json", "time.json",
    "trace.json",           "hooks.log",     "SAVE",        "best",
    "on_save.json",         "checkpoints",   "huggingface", "tensorboard",
    "reference.safetensors"};

bool is_there(const fs::path& path) {
  std::error_code error;
  return fs::exists(fs::symlink_status(path, error));
}

bool is_checkpoint(const fs::path& folder, std::string_view name) {
  return (name.starts_with("step-") || name.starts_with("damaged-step-")) &&
         is_there(folder / name / "manifest.json");
}

bool has_runs(const fs::path& folder) {
  std::error_code error;
  for (fs::directory_iterator entry(folder, error), end; !error && entry != end;
       entry.increment(error)) {
    if (is_run_folder(entry->path())) return true;
  }
  return false;
}

}  // namespace

bool is_run_folder(const fs::path& folder) {
  const bool recipe = is_there(folder / "recipe.yaml");
  const bool results = is_there(folder / "metrics.jsonl") || is_there(folder / "checkpoints");
  return (recipe && results) || ((recipe || results) && is_there(folder / ".lock"));
}

bool is_run_file(const fs::path& folder, std::string_view name, bool in_run_folder) {
  if (name.starts_with("events.out.tfevents.") || name.starts_with("sherd-state-") ||
      is_checkpoint(folder, name) || (name == "sweep.json" && has_runs(folder))) {
    return true;
  }
  if (!in_run_folder) return false;
  constexpr std::string_view kUnfinished = ".tmp";
  if (name.ends_with(kUnfinished)) name.remove_suffix(kUnfinished.size());
  return std::ranges::find(kOwnNames, name) != kOwnNames.end() ||
         name.starts_with("collectives_rank_");
}

bool is_run_file(const fs::path& path) {
  fs::path folder = path.is_absolute() ? path.root_path() : fs::path(".");
  for (const fs::path& part : path.relative_path()) {
    if (is_run_file(folder, part.native(), is_run_folder(folder))) return true;
    folder /= part;
  }
  return false;
}

}  // namespace sherd::data
