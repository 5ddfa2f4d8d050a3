/// A buffer that both host code and kernels read or write: token ids, norms, step statistics.
///
/// If the device has its own memory, the buffer has a twin in host memory, and writes of one side
/// are copied to the other in a stream's order. Otherwise both are the same memory, and copies do
/// nothing.
///
///   host() written -> to_device(stream) -> kernels on `stream`
///   kernels on `stream` -> to_host(stream) -> stream.synchronize() -> host() read
#pragma once

#include "sharding/mesh/rank.h"

namespace sherd::sharding {

/// The twin, in the plan of host memory. It is always alive, because copies don't follow phases.
BufferSpec twin_of(const BufferSpec& spec);

class MirroredBuffer {
 public:
  MirroredBuffer() = default;
  /// `spec.home` is kMirrored.
  MirroredBuffer(const Rank& rank, const BufferSpec& spec);

  const Tensor& device() const { return buffer_.tensor(); }
  const Tensor& host() const { return twin_ ? twin_.tensor() : buffer_.tensor(); }
  bool has_twin() const { return static_cast<bool>(twin_); }

  /// Elements [first, first + count); all elements if omitted.
  void to_device(Stream& stream, std::int64_t first, std::int64_t count) const;
  void to_host(Stream& stream, std::int64_t first, std::int64_t count) const;
  void to_device(Stream& stream) const { to_device(stream, 0, host().numel); }
  void to_host(Stream& stream) const { to_host(stream, 0, host().numel); }

 private:
  Buffer buffer_, twin_;
};

}  // namespace sherd::sharding
