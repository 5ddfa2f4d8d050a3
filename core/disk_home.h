/// One rank's state that is in a file between uses. A buffer here has addresses but no memory:
/// code that follows one stops at once. The calls below move its bytes.
///
/// A buffer is divided into blocks of BufferSpec::disk_block elements, the last one maybe shorter.
/// A block is read and written as a whole, at an address where one begins, and has a checksum that
/// reading verifies. Blocks that were never written are zeros.
///
///   Ticket read = home.read(address, memory);    // returns at once
///   home.wait(read);                             // the block is in memory
///
/// Order    requests start in the order in which they were made. One that touches the block of an
///          earlier one starts after it.
/// Snapshot from `begin_snapshot` to `end_snapshot`, `copy` reads what was there when it began,
///          although writes continue: they go to a second place in the file. So a save costs disk
///          space, but neither memory nor time.
/// Threads  the rank's thread makes requests; `copy` may be called by another at the same time.
/// Errors   `wait` and `copy` throw what the request met: DataError, with file, operation and
///          remedy. After an error all later requests fail.
#pragma once

#include <chrono>
#include <cstdint>

#include "core/memory.h"

namespace sherd {

class DiskHome : public Allocator {
 public:
  /// Number of a request. Waiting for 0 returns at once.
  using Ticket = std::int64_t;

  /// Whether the address is one of a buffer here.
  virtual bool has(const void* address) const = 0;
  /// Reads the block that begins at `address` to `to`, or writes it from `from`. The memory must be
  /// aligned to kDiskAlignment, and have room for the block rounded up to it; it belongs to the
  /// request until `wait` has returned.
  virtual Ticket read(const void* address, void* to) = 0;
  virtual Ticket write(const void* address, const void* from) = 0;
  /// Returns when the request and all those before it are done.
  virtual void wait(Ticket ticket) = 0;
  /// Total time that `wait` has blocked.
  virtual std::chrono::nanoseconds waited() const = 0;

  /// Copies any bytes between memory and one buffer here, and returns when they are there. To a
  /// buffer here: only outside of snapshots, and only before the first `read` or `write`.
  virtual void copy(const void* from, void* to, std::int64_t bytes) = 0;
  virtual void begin_snapshot() = 0;
  virtual void end_snapshot() = 0;

  /// Bytes read and written so far.
  struct Traffic {
    std::int64_t read = 0, written = 0;
  };
  virtual Traffic traffic() const = 0;
};

/// Of addresses, file offsets and lengths of direct input and output.
inline constexpr std::int64_t kDiskAlignment = 4096;

}  // namespace sherd
