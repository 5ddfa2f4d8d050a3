/// How fast a drive reads and writes blocks of state, measured with a file of its own.
#pragma once

#include <string>

#include "checkpoint/store/disk.h"

namespace sherd::engine {

struct MeasuredDisk {
  double read = 0.0, write = 0.0;  ///< bytes per second: blocks of 4 MiB, two at a time
  bool direct = false;             ///< without the page cache
};

/// Writes `bytes` to a file without a name in `folder`, then reads them.
/// Errors   DataError: no such folder, no room, a failing drive.
MeasuredDisk measure_disk(checkpoint::Disk& disk, const std::string& folder,
                          std::int64_t bytes = std::int64_t{512} << 20);

}  // namespace sherd::engine
