/// The disk home of a rank (core/offload_home.h): its state file, and threads that read and write it.
#pragma once

#include <memory>
#include <string>

#include "checkpoint/store/disk.h"
#include "core/offload_home.h"

namespace sherd::engine {

struct FileHomeOptions {
  std::string folder;      ///< exists
  bool snapshots = false;  ///< reserves space for a second place of every block
  int num_threads = 2;     ///< as fast as more on the drives measured, and as io_uring
  checkpoint::Disk* disk = &checkpoint::posix_disk();
};

/// Errors   as StateFile; TrainingError: the machine refuses a thread or the addresses.
std::shared_ptr<OffloadHome> make_file_home(const MemoryPlan& plan, const FileHomeOptions& options);

/// What a user should know about a folder that state is to be kept in: that it is memory, or on
/// another machine. Empty: nothing.
std::string remark_on_folder(const std::string& folder);

}  // namespace sherd::engine
