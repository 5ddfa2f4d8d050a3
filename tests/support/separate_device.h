/// A device whose memory isn't the host's, without a GPU: its kernels are the CPU's, its memory can
/// be touched only while one of its streams is at work. Host code that reads or writes a rank's
/// device memory by itself dies of a segmentation fault, as it would with a GPU's.
///
/// With `deferred`, the compute stream is a queue with a thread of its own, as a GPU's is: what
/// host code reads without waiting isn't there yet.
#pragma once

#include <memory>

#include "core/arena.h"
#include "engine/device.h"

namespace sherd::testing {

class SeparateDevice {
 public:
  explicit SeparateDevice(bool deferred) : deferred_(deferred) {}

  std::unique_ptr<Stream> make_stream(const StreamOptions& options) const;
  static std::unique_ptr<ArenaMemory> make_memory(std::int64_t bytes);
  /// As whole runs take it: ranks get streams and memory of it.
  engine::Device as_device() const;

 private:
  bool deferred_;
};

}  // namespace sherd::testing
