/// The folder that a run writes to: made, locked, and written to with care.
///
/// Whoever can write beside a run can put links and pipes where its files go. Files are therefore
/// made anew under a temporary name and renamed, or opened only if they are plain files with one
/// name: nothing outside of the folder is ever written to, and nothing is waited for. The folder
/// may have been removed or given to another run meanwhile: the lock is checked before each write.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "checkpoint/store/output_lock.h"

namespace sherd::engine {

class OutputFolder {
 public:
  /// Makes the folder, durably, and locks it: before anything is computed.
  /// Errors   UsageError if it can't be made or written to, or another run has it; DataError if the disk
  ///          is full. What it has made is gone then.
  OutputFolder(checkpoint::Disk& disk, const std::string& path);
  /// The folder that another process of the same run has made and locked.
  /// Errors   UsageError if it isn't there, or this process can't write to it.
  static OutputFolder of_another_process(checkpoint::Disk& disk, const std::string& path);

  const std::string& path() const { return path_; }
  std::string file(std::string_view name) const { return path_ + "/" + std::string(name); }
  checkpoint::Disk& disk() const { return disk_; }
  /// Null where another process has it.
  const checkpoint::OutputLock* lock() const { return lock_ ? &*lock_ : nullptr; }

  /// Replaces the file as a whole, durably. Errors   DataError naming it; LockLost.
  void replace(std::string_view name, std::string_view text) const;
  /// The same for a file that no other process writes: allowed where another one has the lock.
  void replace_own(std::string_view name, std::string_view text) const;

  /// Of a run that was refused before it began: removes what it wrote to a folder that was empty, and
  /// the folders that it made. Leaves all as it is where there is anything but `own_names`. Without a
  /// word if it fails.
  void take_back(const std::vector<std::string>& own_names) const;

 private:
  struct Others {};
  struct Made {
    std::string path;
    std::vector<std::string>
        new_folders{};  ///< those that weren't there, from the top; the last is `path`
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

/// Errors   DataError that says what to do, if the reason of `error` is that the disk is full.
void throw_if_full(const std::string& output_dir, const checkpoint::DiskError& error);

}  // namespace sherd::engine
