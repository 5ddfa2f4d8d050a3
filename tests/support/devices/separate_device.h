/// A device with separate memory, without a GPU. Its kernels are the CPU's. Its memory is
/// accessible only while one of its streams is working. Host code that accesses a rank's device
/// memory directly gets a segmentation fault, as with a GPU.
///
/// With `deferred`, the compute stream is a queue with its own thread, like a GPU stream: results
/// aren't there yet if host code reads without waiting. With `streams`, work runs on those streams.
/// With `hooked_rank`, only the streams of that rank call the launch's hook.
#pragma once

#include <memory>
#include <optional>

#include "core/arena.h"
#include "tests/support/devices/late_streams.h"

namespace sherd::testing {

class SeparateDevice final : public engine::Machine {
 public:
  explicit SeparateDevice(bool deferred, std::optional<int> hooked_rank = {})
      : deferred_(deferred), hooked_rank_(hooked_rank) {}
  explicit SeparateDevice(LateStreams streams) : deferred_(true), streams_(std::move(streams)) {}

  engine::DeviceTraits traits() const override { return {DeviceKind::kCpu, true}; }
  std::unique_ptr<Stream> make_stream(StreamOptions options) const override;
  std::unique_ptr<Allocator> make_memory(MemoryPlan plan) const override;

 private:
  bool deferred_;
  std::optional<int> hooked_rank_;
  std::optional<LateStreams> streams_;
};

}  // namespace sherd::testing
