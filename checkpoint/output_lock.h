/// One run at a time writes to an output folder.
///
/// The lock is flock() on <output_dir>/.lock, so it goes with the process, however that ends; the
/// file stays and says who has, or last had, the folder. Other machines on a shared file system are
/// held off where that file system's flock does so (NFS since Linux 2.6.12, Lustre with -o flock).
#pragma once

#include <string>

#include "checkpoint/disk.h"

namespace sherd::checkpoint {

class OutputLock {
 public:
  /// Errors   UsageError if another run has the folder: names its process, machine and start; or if
  ///          the file system has no locks: then two runs couldn't be told apart.
  OutputLock(Disk& disk, const std::string& output_dir);

 private:
  File file_;  // holds the lock until it is closed
};

}  // namespace sherd::checkpoint
