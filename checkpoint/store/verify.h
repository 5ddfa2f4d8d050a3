/// Checks whether a checkpoint is good, for `sherd verify`.
///
///   shallow   the manifest is valid, and every file exists with its exact size: what a resume
///             checks before it reads
///   deep      every byte of every file against its checksum: the shards' blocks, the bytes outside
///             them, and index.h5
///
/// A damaged checkpoint isn't an error here: it is reported. Checking continues after the first
/// problem. Memory: one block. libhdf5 isn't used.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "checkpoint/store/committed.h"
#include "checkpoint/store/disk.h"

namespace sherd::checkpoint {

enum class VerifyDepth { kShallow, kDeep };

struct VerifyReport {
  std::vector<std::string> problems;  ///< each names its file; empty: the checkpoint is good
  std::vector<std::string> notes;     ///< harmless: files that aren't the checkpoint's
  std::int64_t num_files = 0;
  std::int64_t bytes_checked = 0;  ///< deep: read and compared

  bool good() const { return problems.empty(); }
};

VerifyReport verify(Disk& disk, const std::string& path, VerifyDepth depth);
/// For an opened checkpoint: opening it has already made the shallow checks.
VerifyReport verify(const Checkpoint& checkpoint, VerifyDepth depth);

}  // namespace sherd::checkpoint
