/// One run at a time writes to an output folder.
///
/// The lock is flock() on <output_dir>/.lock, so it goes with the process, however that ends; the
/// file stays and says who has, or last had, the folder. Other machines on a shared file system are
/// held off where that file system's flock does so (NFS since Linux 2.6.12, Lustre with -o flock).
///
/// A lock is on a file, not on a name: if the folder is renamed or removed during the run,
/// another run can lock the file that then has the name. So whoever is about to change something in
/// the folder calls `check()` first.
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
  /// Errors   UsageError if another run has the folder: names its process, machine and start; if
  ///          the file system has no locks: then two runs couldn't be told apart; or if .lock is
  ///          no file of a run: a link, a pipe, a file with another name as well.
  OutputLock(Disk& disk, std::string output_dir);

  /// Errors   LockLost if the file named .lock isn't the one that this run has locked. Any thread.
  /// Cost     one lstat().
  void check() const;

 private:
  Disk& disk_;
  std::string output_dir_;
  File file_;  // holds the lock until it is closed
  FileStatus held_;
};

/// Who has the folder: "process 4711 on node7 since 2026-11-22 12:00:00 UTC", or "" if no process on this
/// machine has. Takes no lock, so it keeps no run from beginning.
std::string holder_of(Disk& disk, const std::string& output_dir);

}  // namespace sherd::checkpoint
