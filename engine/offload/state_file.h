/// The file of a rank's state on disk: blocks with checksums, each with one or two places.
///
/// The file has no name: it is removed from its folder as soon as it is open. So nothing is left of
/// a run that is killed, two runs can use one folder, and nobody can remove or change the file. Its
/// space is reserved when it is made, so a full disk is found before the first step. It isn't part
/// of any checkpoint, and is never synced.
///
/// Input and output are direct (O_DIRECT). Where the file system refuses that, they go through the
/// page cache, which takes memory that the system can take back.
///
/// Threads   any, for different blocks.
/// Errors    DataError: the folder can't be used, the disk is full, a read or write fails, or a
///           block isn't what was written.
#pragma once

#include <atomic>
#include <cstdint>
#include <string>
#include <vector>

#include "checkpoint/store/disk.h"

namespace sherd::engine {

class StateFile {
 public:
  struct BlockSize {
    std::int64_t bytes = 0;
    bool is_kept = false;  ///< it has a second place, for snapshots
  };
  StateFile(checkpoint::Disk& disk, const std::string& folder,
            const std::vector<BlockSize>& block_sizes);

  /// Memory: aligned to kDiskAlignment, disk_room() of the block's bytes.
  void read(std::size_t block, int place, void* to) const;
  void write(std::size_t block, int place, const void* from);

  std::int64_t block_bytes(std::size_t block) const { return blocks_[block].bytes; }
  bool is_kept(std::size_t block) const { return blocks_[block].offsets[1] > 0; }
  std::int64_t file_bytes() const { return file_bytes_; }
  /// False if the file system has refused direct input and output.
  bool is_direct() const { return direct_works_; }
  /// False if the file system can't reserve space.
  bool is_reserved() const { return reserved_; }

 private:
  struct Block {
    std::int64_t bytes = 0;
    std::int64_t offsets[2] = {0, 0};
    std::uint64_t checksums[2] = {0, 0};
  };

  std::string folder_;
  std::vector<Block> blocks_;
  std::int64_t file_bytes_ = 0;
  checkpoint::File file_, direct_;
  mutable std::atomic<bool> direct_works_ = false;
  bool reserved_ = false;
};

}  // namespace sherd::engine
