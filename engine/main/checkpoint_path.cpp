#include "engine/main/checkpoint_path.h"

#include <filesystem>

#include "checkpoint/store/committed.h"
#include "core/error.h"
#include "engine/saving/saved_counters.h"

namespace sherd::main {
namespace {

namespace fs = std::filesystem;

// The newest that opens; its bytes are verified when they are read.
std::string newest_in(const std::string& folder) {
  checkpoint::Newest newest = checkpoint::newest_checkpoint(checkpoint::posix_disk(), folder);
  if (newest.checkpoint) return newest.checkpoint->path();
  std::string problems;
  for (const checkpoint::Refusal& refusal : newest.refused) {
    problems += fmt::format(" {}: {}", refusal.path, refusal.reason);
  }
  throw DataError("{}: contains no checkpoint.{}", folder, problems);
}

}  // namespace

std::string checkpoint_path(const std::string& path) {
  std::error_code error;
  fs::path folder(path);
  if (!folder.has_filename()) folder = folder.parent_path();  // runs/x/
  if (fs::exists(folder / checkpoint::kManifestName, error)) return folder.string();
  // A note for people; what it names is the newest.
  if (folder.filename() == "latest" && fs::is_regular_file(folder, error)) {
    return newest_in(folder.has_parent_path() ? folder.parent_path().string() : ".");
  }
  if (folder.filename() == "best" && !fs::exists(folder, error)) {
    const fs::path run = folder.has_parent_path() ? folder.parent_path() : fs::path(".");
    const fs::path inside = run / "checkpoints";
    return engine::best_checkpoint(checkpoint::posix_disk(),
                                   (fs::is_directory(inside, error) ? inside : run).string());
  }
  if (fs::is_directory(folder / "checkpoints", error)) {
    return newest_in((folder / "checkpoints").string());
  }
  const std::string text = folder.string();
  if (!checkpoint::committed_steps(checkpoint::posix_disk(), text).empty()) return newest_in(text);
  return path;
}

}  // namespace sherd::main
