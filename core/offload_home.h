/// One rank's state that is elsewhere between uses: in a file, where a buffer has addresses but no
/// memory, or for a GPU in the host's memory, which kernels don't use. The calls below move its bytes.
///
/// A buffer is divided into blocks of BufferSpec::disk_block elements, the last one maybe shorter.
/// A block is read and written as a whole; in a file it has a checksum that reading verifies. Blocks
/// that were never written are zeros.
///
///   const Ticket read = home.read(address, memory);    // returns at once
///   home.wait(read);                                    // the block is in memory
///
/// Order      a request starts after all earlier ones of the same block or the same memory. On a GPU
///            it also starts after all work of the compute stream so far, and `wait` makes the
///            compute stream wait, not the caller.
/// Snapshot   from `begin_snapshot` to `end_snapshot`, `copy_of_snapshot` reads what was there when
///            it began, although writes continue: they go to a second place in the file. So a save
///            costs disk space, but neither memory nor time. Host memory has no second place:
///            `keeps_snapshots` is false, and a save copies before the next update.
/// Threads    copies and `each_part` may be called by any thread, all else by the rank's. Writes of
///            `copy` and `each_part` come before the first request, since what a request has read
///            ahead wouldn't have them.
/// Errors     `wait` and the copies throw what a request met: DataError, with file, operation and
///            remedy. After an error all later requests fail.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "core/memory_plan.h"
#include "core/stream.h"

namespace sherd {

/// What waiting of a compute stream for state counts as (Event::counts_as).
inline constexpr std::size_t kWaitsForState = Event::kMostKinds - 1;

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

class OffloadHome : public Allocator {
 public:
  /// Number of a request. Waiting for 0 returns at once.
  using Ticket = std::int64_t;

  /// What a home acquires in memory for copies of parts of blocks, if `buffers` has any in a home.
  /// `separate_memory`: the device has its own memory, so the home is the host's.
  static std::vector<BufferSpec> copy_buffers(const std::vector<BufferSpec>& buffers, bool saves,
                                              bool separate_memory);
  /// A buffer of a home as it is acquired in the host's memory.
  static BufferSpec on_host(BufferSpec buffer);
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
  /// Total time that `wait` has blocked the caller, or the compute stream.
  virtual std::chrono::nanoseconds waited() const = 0;

  /// Copies any bytes from memory to one buffer here, or back, and returns when they are there.
  virtual void copy(const void* from, void* to, std::int64_t bytes) = 0;
  /// Brings [address, address + bytes) into memory, one part after another: use(memory, first byte,
  /// bytes). With `writes`, what `use` changes there is kept. On a GPU, `use` enqueues work on
  /// `stream`, the compute or the gather stream, and the memory is the next part's after that work.
  using Use = std::function<void(void* memory, std::int64_t begin, std::int64_t bytes)>;
  virtual void each_part(Stream& stream, const void* address, std::int64_t bytes, bool writes,
                         const Use& use) = 0;
  /// Host code on this stream also changes buffers here. Copies, snapshots and `each_part` on the
  /// compute stream wait for it; who uses `each_part` on another stream orders the two. Only for the
  /// host's memory.
  virtual void works_on(std::shared_ptr<Stream> cores);
  /// Returns when that host code is done; rethrows what it has thrown.
  virtual void settle() {}
  /// Adds bytes that others have moved between the device and the host for such changes.
  virtual void count(const DiskTraffic& moved);

  virtual bool keeps_snapshots() const = 0;
  /// From the snapshot to memory.
  virtual void copy_of_snapshot(const void* from, void* to, std::int64_t bytes) = 0;
  /// The state as it is after all requests so far.
  virtual void begin_snapshot() = 0;
  virtual void end_snapshot() = 0;

  /// Bytes read from the home and written to it so far, without those of snapshots and `each_part`
  /// with writes.
  virtual DiskTraffic traffic() const = 0;
};

}  // namespace sherd
