#include "engine/report/output_folder.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

namespace sherd::engine {
namespace {

using checkpoint::Disk;
using checkpoint::DiskError;

// Each folder that is made is durable in the one above it before the next one is.
void make_folder(Disk& disk, const std::string& path, std::vector<std::string>& made) {
  const std::string above = checkpoint::folder_of(path);
  try {
    if (!checkpoint::make_directory(disk, path)) return;
  } catch (const DiskError& error) {
    if (error.error_number != ENOENT || above == path) throw;
    make_folder(disk, above, made);
    if (!checkpoint::make_directory(disk, path)) return;
  }
  made.push_back(path);
  checkpoint::sync_directory(disk, above);
}

// Removes folders that are still empty.
void remove_folders(Disk& disk, const std::vector<std::string>& made) {
  for (auto path = made.rbegin(); path != made.rend(); ++path) {
    if (disk.rmdir(*path) < 0) return;
    checkpoint::sync_directory(disk, checkpoint::folder_of(*path));
  }
}

bool holds_only(Disk& disk, const std::string& folder, std::vector<std::string> names) {
  names.emplace_back(checkpoint::kLockName);
  const std::vector<std::string> found = checkpoint::list_directory(disk, folder);
  return std::ranges::all_of(found, [&](const std::string& name) {
    return std::ranges::find(names, name) != names.end();
  });
}

}  // namespace

void throw_if_full(const std::string& output_dir, const DiskError& error) {
  if (error.error_number != ENOSPC && error.error_number != EDQUOT) return;
  throw DataError(
      "run.output_dir {}: the disk is full ({}). Make room, or choose another folder with --set "
      "run.output_dir=...",
      output_dir, error.what());
}

OutputFolder::Made OutputFolder::make(Disk& disk, std::string path) {
  while (path.size() > 1 && path.ends_with('/')) path.pop_back();
  Made made{path};
  std::string problem;
  try {
    make_folder(disk, path, made.new_folders);
    if (::access((path + "/.").c_str(), W_OK | X_OK) != 0) problem = std::strerror(errno);
  } catch (const DiskError& error) {
    remove_folders(disk, made.new_folders);
    throw_if_full(path, error);
    problem = error.what();
  }
  if (problem.empty()) return made;
  throw UsageError(
      "run.output_dir {}: can't be written: {}. Choose another folder with --set "
      "run.output_dir=...",
      path, problem);
}

OutputFolder::OutputFolder(Disk& disk, const std::string& path)
    : OutputFolder(disk, make(disk, path)) {}

OutputFolder::OutputFolder(Disk& disk, const Made& made)
    : disk_(disk), path_(made.path), new_folders_(made.new_folders) {
  try {
    lock_.emplace(disk, path_);
  } catch (const DiskError& error) {
    remove_folders(disk, new_folders_);
    throw_if_full(path_, error);
    throw;
  }
  try {
    was_empty_ = holds_only(disk, path_, {});  // with the lock, no other run writes there
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
  SHERD_CHECK(lock_, "{} is written by the process that has its lock", name);
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
    if (new_folders_.empty()) {
      checkpoint::remove_file(disk_, file(checkpoint::kLockName));
    } else if (holds_only(disk_, path_, {})) {
      checkpoint::remove_file(disk_, file(checkpoint::kLockName));
      remove_folders(disk_, new_folders_);
    }
  } catch (const DataError&) {  // the reason for refusing the run is more useful
  }
}

}  // namespace sherd::engine
