/// A device whose memory isn't the host's, without a GPU: its kernels are the CPU's, its memory can
/// be touched only while one of its streams is at work. Host code that reads or writes a rank's
/// device memory by itself dies of a segmentation fault, as it would with a GPU's.
///
/// With `deferred`, the compute stream is a queue with a thread of its own, as a GPU's is: what
/// host code reads without waiting isn't there yet. With `streams`, work is done on those.
#pragma once

#include <memory>
#include <optional>

#include "core/arena.h"
#include "tests/support/devices/late_streams.h"

namespace sherd::testing {

class SeparateDevice final : public engine::Machine {
 public:
  explicit SeparateDevice(bool deferred) : deferred_(deferred) {}
  explicit SeparateDevice(LateStreams streams) : deferred_(true), streams_(std::move(streams)) {}

  engine::DeviceTraits traits() const override { return {DeviceKind::kCpu, true}; }
  std::unique_ptr<Stream> make_stream(StreamOptions options) const override;
  std::unique_ptr<Allocator> make_memory(MemoryPlan plan) const override;

 private:
  bool deferred_;
  std::optional<LateStreams> streams_;
};

}  // namespace sherd::testing
