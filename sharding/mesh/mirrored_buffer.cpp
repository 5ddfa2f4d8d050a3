#include "sharding/mesh/mirrored_buffer.h"

namespace sherd::sharding {

BufferSpec twin_of(const BufferSpec& spec) {
  return {spec.name + ".on_host", spec.category, spec.dtype, spec.numel, kAlways, Home::kHost};
}

MirroredBuffer::MirroredBuffer(const Rank& rank, const BufferSpec& spec)
    : buffer_(rank.acquire(spec)) {
  SHERD_CHECK(spec.home == Home::kMirrored, "buffer {} isn't planned with a twin on the host",
              spec.name);
  if (rank.separate_memory()) twin_ = rank.acquire(twin_of(spec));
}

void MirroredBuffer::to_device(Stream& stream, std::int64_t first, std::int64_t count) const {
  if (!twin_) return;
  const Tensor to = device().part(first, count);
  stream.copy(twin_.tensor().part(first, count).data, to.data, to.bytes());
}

void MirroredBuffer::to_host(Stream& stream, std::int64_t first, std::int64_t count) const {
  if (!twin_) return;
  const Tensor to = twin_.tensor().part(first, count);
  stream.copy(device().part(first, count).data, to.data, to.bytes());
}

}  // namespace sherd::sharding
