#include "engine/saving/checkpoint_path.h"

#include <filesystem>

#include "checkpoint/store/step_directory.h"
#include "core/error.h"
#include "engine/saving/saved_counters.h"

namespace sherd::engine {
namespace {

namespace fs = std::filesystem;

constexpr int kMostLooks = 1000;  // a run saves once between two of them at most

// The newest that opens; how good its bytes are is found out by whoever reads them.
ChosenCheckpoint newest_in(const std::string& folder) {
  for (int look = 0; look < kMostLooks; ++look) {
    checkpoint::Newest newest = checkpoint::newest_checkpoint(checkpoint::posix_disk(), folder);
    if (newest.checkpoint) {
      if (!newest.checkpoint->hold()) continue;
      std::string path = newest.checkpoint->path();
      return {std::move(path), std::move(newest.checkpoint), std::move(newest.refused)};
    }
    std::string problems;
    for (const checkpoint::Refusal& refusal : newest.refused) {
      problems += fmt::format(" {}: {}", refusal.path, refusal.reason);
    }
    throw DataError("{}: contains no checkpoint.{}", folder, problems);
  }
  throw DataError("{}: its run removes checkpoints faster than they can be opened.", folder);
}

// It holds what it can; opening it again says what is wrong with the rest.
ChosenCheckpoint held(const std::string& path) {
  ChosenCheckpoint chosen{path};
  try {
    chosen.held.emplace(checkpoint::posix_disk(), path);
    if (!chosen.held->hold()) chosen.held.reset();
  } catch (const DataError&) {
  }
  return chosen;
}

ChosenCheckpoint best_in(const std::string& folder) {
  ChosenCheckpoint chosen;
  for (int look = 0; look < kMostLooks && !chosen.held; ++look) {
    chosen = held(best_checkpoint(checkpoint::posix_disk(), folder));
    std::error_code error;
    if (fs::exists(chosen.path, error)) break;
  }
  return chosen;
}

// A step by name that isn't there, where others are: its run may have removed it before or since.
void refuse_a_removed_one(const fs::path& folder) {
  std::error_code error;
  if (!checkpoint::step_of_directory(folder.filename().string()) || fs::exists(folder, error))
    return;
  const std::string run = folder.has_parent_path() ? folder.parent_path().string() : ".";
  const auto steps = checkpoint::committed_steps(checkpoint::posix_disk(), run);
  if (steps.empty()) return;
  throw DataError(
      "{}: isn't there; a run removes older checkpoints (checkpoint.keep_last). The newest there "
      "is "
      "{}.",
      folder.string(), checkpoint::step_directory_name(steps.front()));
}

}  // namespace

bool has_begun_since(const std::string& path, const std::string& directory,
                     checkpoint::Disk& disk) {
  const std::vector<std::int64_t> own = checkpoint::committed_steps(disk, directory);
  if (own.empty()) return false;
  fs::path folder(path);
  if (!folder.has_filename()) folder = folder.parent_path();
  const fs::path parent = folder.has_parent_path() ? folder.parent_path() : ".";
  std::error_code error;
  if (!fs::equivalent(parent, directory, error)) return true;
  const auto step = checkpoint::step_of_directory(folder.filename().string());
  if (step && *step < own.front()) {
    throw UsageError(
        "checkpoint.resume is {}, but {} has later checkpoints. To continue from the newest, {}, "
        "use --set checkpoint.resume=auto. To go back, move the later ones away first, or choose "
        "another run.output_dir.",
        path, directory, checkpoint::step_directory_name(own.front()));
  }
  return false;
}

ChosenCheckpoint choose_checkpoint(const std::string& path) {
  std::error_code error;
  fs::path folder(path);
  if (!folder.has_filename()) folder = folder.parent_path();  // runs/x/
  if (fs::exists(folder / checkpoint::kManifestName, error)) {
    ChosenCheckpoint chosen = held(folder.string());
    if (!chosen.held) refuse_a_removed_one(folder);
    return chosen;
  }
  refuse_a_removed_one(folder);
  // A note for people; what it names is the newest.
  if (folder.filename() == "latest" && fs::is_regular_file(folder, error)) {
    return newest_in(folder.has_parent_path() ? folder.parent_path().string() : ".");
  }
  if (folder.filename() == "best" && !fs::exists(folder, error)) {
    const fs::path run = folder.has_parent_path() ? folder.parent_path() : fs::path(".");
    const fs::path inside = run / "checkpoints";
    return best_in((fs::is_directory(inside, error) ? inside : run).string());
  }
  if (fs::is_directory(folder / "checkpoints", error)) {
    return newest_in((folder / "checkpoints").string());
  }
  const std::string text = folder.string();
  if (!checkpoint::committed_steps(checkpoint::posix_disk(), text).empty()) return newest_in(text);
  return {path};
}

}  // namespace sherd::engine
