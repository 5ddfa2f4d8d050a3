#include "core/offload_home.h"

#include <algorithm>

#include "core/error.h"

namespace sherd {
namespace {

std::int64_t block_bytes(const BufferSpec& buffer) {
  const std::int64_t block = buffer.disk_block > 0 ? buffer.disk_block : buffer.numel;
  return std::min(block, buffer.numel) * static_cast<std::int64_t>(size_of(buffer.dtype));
}

}  // namespace

std::int64_t disk_room_of(const BufferSpec& buffer, bool snapshots) {
  const std::int64_t block = block_bytes(buffer);
  if (block == 0) return 0;
  const std::int64_t whole = buffer.bytes() / block;
  const std::int64_t room = whole * disk_room(block) + disk_room(buffer.bytes() - whole * block);
  return snapshots && is_kept_for_saves(buffer) ? 2 * room : room;
}

std::vector<BufferSpec> OffloadHome::copy_buffers(const std::vector<BufferSpec>& buffers,
                                                  bool saves, bool separate_memory) {
  std::int64_t bytes = 0, gathered = 0;
  for (const BufferSpec& buffer : buffers) {
    if (buffer.home != Home::kDisk) continue;
    const std::int64_t room = disk_room(block_bytes(buffer));
    bytes = std::max(bytes, room);
    const bool has_weights =
        buffer.category == Category::kParameters || buffer.category == Category::kMaster;
    if (has_weights) gathered = std::max(gathered, room);
  }
  if (bytes == 0) return {};
  // Buffers of this category are placed on pages.
  if (separate_memory) {
    if (gathered == 0) return {};
    return {{"offload.copy", Category::kCheckpoint, DType::kU8, gathered},
            {"offload.gathered", Category::kCheckpoint, DType::kU8, gathered}};
  }
  std::vector<BufferSpec> copies = {{"offload.copy", Category::kCheckpoint, DType::kU8, bytes}};
  if (saves) copies.push_back({"offload.snapshot", Category::kCheckpoint, DType::kU8, bytes});
  return copies;
}

BufferSpec OffloadHome::on_host(BufferSpec buffer) {
  buffer.home = Home::kHost;
  return buffer;
}

void OffloadHome::works_on(std::shared_ptr<Stream>) {
  SHERD_CHECK(false, "host code changes state that isn't in the host's memory");
}

void OffloadHome::count(const DiskTraffic&) {
  SHERD_CHECK(false, "bytes of state that isn't in the host's memory");
}

}  // namespace sherd
