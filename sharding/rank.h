/// One participant: its number, its streams, its communicators, its memory.
///
/// Gather and reduce have a communicator each, because on one communicator the order of calls is
/// the order of execution, and a prefetch must not queue behind a reduction.
#pragma once

#include <exception>
#include <functional>
#include <memory>

#include "core/memory.h"
#include "core/stream.h"
#include "sharding/comm/communicator.h"

namespace sherd::sharding {

struct Rank {
  int rank = 0;
  int world_size = 1;
  // Buffers outlive streams and streams outlive nothing they touch: members are destroyed from the
  // bottom, so the workers are joined before communicators and memory go.
  std::unique_ptr<Allocator> memory;
  /// Host memory that the device reaches: where the device's memory isn't the host's, else null.
  std::unique_ptr<Allocator> host_memory;
  std::unique_ptr<Communicator> gather_communicator;
  std::unique_ptr<Communicator> reduce_communicator;

  Stream& compute() const { return *compute_stream; }
  Stream& gather() const { return *gather_stream; }
  Stream& reduce() const { return *reduce_stream; }
  std::unique_ptr<Event> make_event() const { return compute().make_event(); }

  /// Whether host code must not touch what stands in `memory`.
  bool separate_memory() const { return host_memory != nullptr; }
  /// A buffer for host code and copies alone: never in a device's memory of its own.
  Buffer acquire_on_host(const BufferSpec& spec) const {
    return (host_memory ? *host_memory : *memory).acquire(spec);
  }
  /// Where the memory is separate: a stream for copies from and to the host beside everything else.
  std::function<std::unique_ptr<Stream>(const std::string& name)> make_copy_stream;

  /// Runs `work` and returns when this rank's streams are idle. If it throws, the communicators are
  /// aborted with the reason first, so that no peer waits, and the error is rethrown once the
  /// streams are idle: whatever `work` used may be destroyed after that, and not before.
  void guard(const std::function<void()>& work) const;

  std::function<void(std::exception_ptr)> report_failure;  ///< called before peers learn of it

  std::unique_ptr<Stream> compute_stream;
  std::unique_ptr<Stream> gather_stream;
  std::unique_ptr<Stream> reduce_stream;
};

}  // namespace sherd::sharding
