/// Writes one shard of a checkpoint: copies the state into the ring, checksums it there, writes it.
///
///   copy()    on a separate thread: pieces -> ring; done when the caller's memory is free again
///   write()   meanwhile: HDF5 metadata and the ring's blocks -> file, made durable
///   stop()    from any thread: both end soon, with SaveStopped
///
/// For one use. Errors: DiskError, DataError (non-finite state). After an error, call stop() to
/// release the other thread.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "checkpoint/format/hdf5_skeleton.h"
#include "checkpoint/format/shard_layout.h"
#include "checkpoint/staging_ring.h"
#include "checkpoint/store/disk.h"
#include "sharding/state/state.h"

namespace sherd::checkpoint {

/// Thrown by copy() and write() after stop().
struct SaveStopped {};

class ShardWriter {
 public:
  /// `path` doesn't exist yet; its directory exists when write() is called. The memory of `state`'s
  /// pieces must stay valid until copy() has returned, and `disk` and `ring` until write() has.
  ShardWriter(Disk& disk, std::string path, ShardLabel label, const sharding::State& state,
              Tensor ring, int writes_in_flight, sharding::CopyState copy = {});

  /// `stays`: whether state at an address stays as it is for longer; it is copied last.
  /// `copied_others` is called before. Both may be empty.
  void copy(const std::function<bool(const void* address)>& stays = {},
            const std::function<void()>& copied_others = {});
  ShardInfo write();
  void stop();

  std::int64_t bytes() const;  ///< of this rank's state
  /// Where write() spends its time, added over all its threads. Valid once it has returned.
  std::chrono::nanoseconds checking() const { return std::chrono::nanoseconds(checking_); }
  std::chrono::nanoseconds syncing() const { return syncing_; }

 private:
  void copy_dataset(int dataset, std::size_t piece);
  void copy_part(const ConstTensor& source, DType saved, std::int64_t used, char* to,
                 std::int64_t bytes) const;
  void open();
  void write_blocks();
  void write_block(const StagingRing::Block& block);
  void write_data(const char* data, std::int64_t bytes, std::int64_t offset);
  std::uint64_t checked_sum(const StagingRing::Block& block) const;
  void write_metadata();

  Disk& disk_;
  const std::string path_;
  const ShardLabel label_;
  const std::vector<sharding::StateTensor> tensors_;
  ShardLayout layout_;
  StagingRing ring_;
  const int writes_in_flight_;
  const sharding::CopyState copy_state_;
  std::atomic<bool> stopped_{false};

  Hdf5Skeleton skeleton_;
  File file_;
  File direct_;  ///< the same file without the page cache, if the file system can
  std::atomic<bool> direct_works_{false};
  std::atomic<std::int64_t> checking_{0};
  std::chrono::nanoseconds syncing_{};
};

}  // namespace sherd::checkpoint
