/// The folder that a run writes to: created, locked, and protected against other writers.
///
/// Other users with write access could put links and pipes in place of a run's files. So files are
/// created under a temporary name and renamed, or opened only if they are plain files with one
/// name: nothing outside the folder is ever written, and no open blocks. The folder may be removed
/// or given to another run meanwhile, so the lock is checked before each write.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "checkpoint/store/output_lock.h"

namespace sherd::engine {

class OutputFolder {
 public:
  /// Creates the folder, durably, and locks it. Call before anything is computed.
  /// Errors   UsageError if it can't be created or written to, or another run has locked it;
  ///          DataError if the disk is full. Created folders are removed then.
  OutputFolder(checkpoint::Disk& disk, const std::string& path);
  /// The folder that another process of the same run has created and locked.
  /// Errors   UsageError if it doesn't exist, or this process can't write to it.
  static OutputFolder of_another_process(checkpoint::Disk& disk, const std::string& path);

  const std::string& path() const { return path_; }
  std::string file(std::string_view name) const { return path_ + "/" + std::string(name); }
  checkpoint::Disk& disk() const { return disk_; }
  /// Null if another process has it.
  const checkpoint::OutputLock* lock() const { return lock_ ? &*lock_ : nullptr; }

  /// Replaces the file as a whole, durably. Errors   DataError naming it; LockLost.
  void replace(std::string_view name, std::string_view text) const;
  /// The same for a file that only this process writes; another process may have the lock.
  void replace_own(std::string_view name, std::string_view text) const;

  /// For a run that was refused before it began: removes what it wrote to an empty folder, and the
  /// folders that it created. Removes nothing if there are files other than `own_names`. Failures
  /// are ignored.
  void take_back(const std::vector<std::string>& own_names) const;

 private:
  struct Others {};
  struct Made {
    std::string path;
    /// Folders that were created, from the top. The last is `path`.
    std::vector<std::string> new_folders{};
  };
  OutputFolder(checkpoint::Disk& disk, const Made& made);
  static Made make(checkpoint::Disk& disk, std::string path);

  OutputFolder(checkpoint::Disk& disk, const std::string& path, Others)
      : disk_(disk), path_(path) {}

  checkpoint::Disk& disk_;
  std::string path_;
  std::optional<checkpoint::OutputLock> lock_;
  std::vector<std::string> new_folders_;
  bool was_empty_ = false;
};

/// Errors   DataError with advice, if `error` is a full disk.
void throw_if_full(const std::string& output_dir, const checkpoint::DiskError& error);

}  // namespace sherd::engine
