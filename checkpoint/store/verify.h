/// Is a checkpoint good? What `sherd verify` asks.
///
///   shallow   the manifest holds, every file is there with its exact size: what a resume looks at
///             before it reads
///   deep      every byte of every file against its checksum: the shards' blocks, what is outside
///             of them, index.h5
///
/// A damaged checkpoint isn't an error here but a report. It continues after the first problem.
/// Memory: one block. libhdf5 isn't used.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "checkpoint/store/committed.h"
#include "checkpoint/store/disk.h"

namespace sherd::checkpoint {

enum class VerifyDepth { kShallow, kDeep };

struct VerifyReport {
  std::vector<std::string> problems;  ///< each names its file; none: the checkpoint is good
  std::vector<std::string> notes;     ///< harmless: files that aren't the checkpoint's
  std::int64_t num_files = 0;
  std::int64_t bytes_checked = 0;  ///< deep: read and compared

  bool good() const { return problems.empty(); }
};

VerifyReport verify(Disk& disk, const std::string& path, VerifyDepth depth);
/// What opening has looked at already holds.
VerifyReport verify(const Checkpoint& checkpoint, VerifyDepth depth);

}  // namespace sherd::checkpoint
