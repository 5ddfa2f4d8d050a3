/// Only one run at a time writes to an output folder.
///
/// The lock is flock() on <output_dir>/.lock, so it ends with the process, however that ends. The
/// file stays and says which process has, or last had, the folder. On a shared file system the lock
/// also excludes other machines if flock works there (NFS since Linux 2.6.12, Lustre with -o
/// flock).
///
/// A lock is on a file, not on a name. If the folder is renamed or removed during the run, another
/// run can lock the file that then has the name. So code that is about to change the folder calls
/// `check()` first.
#pragma once

#include <string>

#include "checkpoint/store/disk.h"

namespace sherd::checkpoint {

inline constexpr const char* kLockName = ".lock";

/// The folder is no longer this run's: the run stops and writes nothing more there. Exit 3.
class LockLost : public DataError {
 public:
  using DataError::DataError;
};

class OutputLock {
 public:
  /// Errors   UsageError in three cases. Another run has the folder: names its process, machine and
  ///          start. The file system has no locks: two runs couldn't be told apart. Or .lock is not
  ///          a run's file: a link, a pipe, or a file that also has another name.
  OutputLock(Disk& disk, std::string output_dir);

  /// Errors   LockLost if the file named .lock isn't the one that this run has locked. Any thread
  ///          may call it.
  /// Cost     one lstat().
  void check() const;

 private:
  Disk& disk_;
  std::string output_dir_;
  File file_;  // holds the lock until it is closed
  FileStatus held_;
};

/// The folder's owner: "process 4711 on node7 since 2026-11-22 12:00:00 UTC", or "" if no process
/// on this machine has it. Takes no lock, so it keeps no run from starting.
std::string holder_of(Disk& disk, const std::string& output_dir);

}  // namespace sherd::checkpoint
