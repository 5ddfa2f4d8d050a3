/// One rank's state that is in a file between uses. A buffer here has addresses but no memory:
/// code that follows one stops at once. The calls below move its bytes.
///
/// A buffer is divided into blocks of BufferSpec::disk_block elements, the last one maybe shorter.
/// A block is read and written as a whole, and has a checksum that reading verifies. Blocks that
/// were never written are zeros.
///
///   const Ticket read = home.read(address, memory);    // returns at once
///   home.wait(read);                                    // the block is in memory
///
/// Order      a request starts after all earlier ones of the same block or the same memory.
/// Snapshot   from `begin_snapshot` to `end_snapshot`, `copy_of_snapshot` reads what was there when
///            it began, although writes continue: they go to a second place in the file. So a save
///            costs disk space, but neither memory nor time.
/// Threads    copies and `each_part` may be called by any thread, all else by the rank's. Writes of
///            `copy` and `each_part` come before the first request, since what a request has read
///            ahead wouldn't have them.
/// Errors     `wait` and the copies throw what a request met: DataError, with file, operation and
///            remedy. After an error all later requests fail.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <vector>

#include "core/memory_plan.h"

namespace sherd {

/// Of addresses, file offsets and lengths of direct input and output.
inline constexpr std::int64_t kDiskAlignment = 4096;
/// Bytes that a block of `bytes` bytes takes, in the file and in memory.
constexpr std::int64_t disk_room(std::int64_t bytes) {
  return (bytes + kDiskAlignment - 1) / kDiskAlignment * kDiskAlignment;
}
/// Whether saves need what the buffer has: state, but no activations.
inline bool is_kept_for_saves(const BufferSpec& buffer) {
  return buffer.category != Category::kActivations;
}
/// Bytes that a buffer takes in the file; `snapshots`: with the second place of what saves need.
std::int64_t disk_room_of(const BufferSpec& buffer, bool snapshots);

class DiskHome : public Allocator {
 public:
  /// Number of a request. Waiting for 0 returns at once.
  using Ticket = std::int64_t;

  /// What a home acquires in memory for copies of parts of blocks, if `buffers` has any on disk.
  static std::vector<BufferSpec> copy_buffers(const std::vector<BufferSpec>& buffers, bool saves);
  /// Acquires them. Call it before any copy.
  virtual void attach(Allocator& memory) = 0;

  /// Whether the address is one of a buffer here.
  virtual bool has(const void* address) const = 0;
  /// Reads the block that begins at `address` to `to`, or writes it from `from`. The memory is
  /// aligned to kDiskAlignment and has disk_room() of the block. It belongs to the request until
  /// `wait` has returned.
  virtual Ticket read(const void* address, void* to) = 0;
  virtual Ticket write(const void* address, const void* from) = 0;
  /// Returns when the request is done.
  virtual void wait(Ticket ticket) = 0;
  /// Returns when no request uses memory any more: all are done, or one has failed and no other
  /// runs.
  virtual void drain() noexcept = 0;
  /// Total time that `wait` has blocked.
  virtual std::chrono::nanoseconds waited() const = 0;

  /// Copies any bytes from memory to one buffer here, or back, and returns when they are there.
  virtual void copy(const void* from, void* to, std::int64_t bytes) = 0;
  /// Brings [address, address + bytes) into memory, one part after another: use(memory, first byte,
  /// bytes). With `writes`, what `use` changes there is kept.
  using Use = std::function<void(void* memory, std::int64_t begin, std::int64_t bytes)>;
  virtual void each_part(const void* address, std::int64_t bytes, bool writes, const Use& use) = 0;
  /// From the snapshot to memory.
  virtual void copy_of_snapshot(const void* from, void* to, std::int64_t bytes) = 0;
  /// The state as it is after all requests so far.
  virtual void begin_snapshot() = 0;
  virtual void end_snapshot() = 0;

  /// Bytes read from the file and written to it so far, without those of snapshots.
  virtual DiskTraffic traffic() const = 0;
};

}  // namespace sherd
