#include "engine/offload/block_table.h"

#include <sys/mman.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "core/error.h"
#include "core/offload_home.h"

namespace sherd::engine {

Addresses::Addresses(std::int64_t bytes) : bytes_(std::max<std::int64_t>(bytes, 1)) {
  void* const memory = mmap(nullptr, static_cast<std::size_t>(bytes_), PROT_NONE,
                            MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED) {
    throw TrainingError("the machine refused {} addresses for state on disk: {}", bytes_,
                        std::strerror(errno));
  }
  begin_ = static_cast<char*>(memory);
}

Addresses::~Addresses() {
  munmap(begin_, static_cast<std::size_t>(bytes_));
}

BlockTable::BlockTable(const MemoryPlan& plan, bool snapshots) {
  std::vector<PlannedBuffer> buffers = plan.buffers();
  std::ranges::sort(buffers, {}, &PlannedBuffer::offset);
  for (const auto& [spec, offset] : buffers) {
    if (spec.bytes() == 0) continue;
    const std::int64_t numel = spec.disk_block > 0 ? spec.disk_block : spec.numel;
    const std::int64_t block = numel * static_cast<std::int64_t>(size_of(spec.dtype));
    ranges_[offset] = {sizes_.size(), block, spec.bytes()};
    const bool is_kept = snapshots && is_kept_for_saves(spec);
    for (std::int64_t done = 0; done < spec.bytes(); done += block) {
      sizes_.push_back({std::min(block, spec.bytes() - done), is_kept});
    }
  }
}

BlockTable::Position BlockTable::find(std::int64_t offset) const {
  const auto range = std::prev(ranges_.upper_bound(offset));
  const std::int64_t byte = offset - range->first;
  SHERD_CHECK(byte < range->second.bytes, "an address between two buffers on disk");
  return {range->second.first + static_cast<std::size_t>(byte / range->second.block),
          byte % range->second.block};
}

}  // namespace sherd::engine
