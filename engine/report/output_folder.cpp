#include "engine/report/output_folder.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

namespace sherd::engine {
namespace {

using checkpoint::Disk;
using checkpoint::DiskError;

// Each folder that is made is durable in the one above it before the next one is. False if it was there.
bool make_folder(Disk& disk, const std::string& path) {
  const std::string above = checkpoint::folder_of(path);
  try {
    if (!checkpoint::make_directory(disk, path)) return false;
  } catch (const DiskError& error) {
    if (error.error_number != ENOENT || above == path) throw;
    make_folder(disk, above);
    if (!checkpoint::make_directory(disk, path)) return false;
  }
  checkpoint::sync_directory(disk, above);
  return true;
}

bool holds_only(Disk& disk, const std::string& folder, std::vector<std::string> names) {
  names.emplace_back(checkpoint::kLockName);
  const std::vector<std::string> found = checkpoint::list_directory(disk, folder);
  return std::ranges::all_of(found, [&](const std::string& name) {
    return std::ranges::find(names, name) != names.end();
  });
}

}  // namespace

OutputFolder::Made OutputFolder::make(Disk& disk, std::string path) {
  Made made;
  while (path.size() > 1 && path.ends_with('/')) path.pop_back();
  std::string problem;
  try {
    made.is_new = make_folder(disk, path);
    if (::access((path + "/.").c_str(), W_OK | X_OK) != 0) problem = std::strerror(errno);
  } catch (const DiskError& error) {
    problem = error.what();
  }
  made.path = path;
  if (problem.empty()) return made;
  throw UsageError(
      "run.output_dir {}: can't be written: {}. Choose another folder with --set "
      "run.output_dir=...",
      path, problem);
}

OutputFolder::OutputFolder(Disk& disk, const std::string& path)
    : OutputFolder(disk, make(disk, path)) {}

OutputFolder::OutputFolder(Disk& disk, const Made& made)
    : disk_(disk), path_(made.path), was_made_(made.is_new) {
  lock_.emplace(disk, path_);
  try {
    was_empty_ = holds_only(disk, path_, {});  // only now nobody else writes there
  } catch (const DiskError&) {                 // it may be written to and not read
  }
}

OutputFolder OutputFolder::of_another_process(Disk& disk, const std::string& path) {
  if (::access((path + "/.").c_str(), W_OK | X_OK) != 0) {
    throw UsageError(
        "run.output_dir {}: {}. All processes write to one folder: put it where each of "
        "their machines sees it.",
        path, std::strerror(errno));
  }
  return {disk, path, Others{}};
}

void OutputFolder::replace(std::string_view name, std::string_view text) const {
  CHECK(lock_, "{} is written by the process that has its lock", name);
  replace_own(name, text);
}

void OutputFolder::replace_own(std::string_view name, std::string_view text) const {
  if (lock_) lock_->check();
  checkpoint::replace_file(disk_, file(name), text);
}

void OutputFolder::take_back(const std::vector<std::string>& own_names) const {
  if (!was_empty_) return;
  try {
    lock_->check();
    if (!holds_only(disk_, path_, own_names)) return;
    for (const std::string& name : own_names) checkpoint::remove_tree(disk_, file(name));
    if (!was_made_ || !holds_only(disk_, path_, {})) return;
    checkpoint::remove_tree(disk_, path_);
    checkpoint::sync_directory(disk_, checkpoint::folder_of(path_));
  } catch (const DataError&) {  // why the run was refused says more
  }
}

}  // namespace sherd::engine
