#include "checkpoint/staging_ring.h"

#include <algorithm>

#include "checkpoint/format/manifest.h"
#include "core/error.h"

namespace sherd::checkpoint {

StagingRing::StagingRing(Tensor memory)
    : memory_(static_cast<char*>(memory.data)), capacity_(memory.bytes()) {
  SHERD_CHECK(reinterpret_cast<std::uintptr_t>(memory_) % kFileAlignment == 0,
              "the staging ring isn't aligned to {} bytes", kFileAlignment);
}

std::int64_t StagingRing::room_of(std::int64_t bytes) {
  return (bytes + kFileAlignment - 1) / kFileAlignment * kFileAlignment;
}

bool StagingRing::find_room(std::int64_t room, std::int64_t& offset) const {
  offset = 0;
  if (reserved_.empty()) return true;
  const std::int64_t begin = reserved_.front().offset;
  const std::int64_t end = reserved_.back().offset + reserved_.back().room;
  if (reserved_.back().offset < begin) {  // wrapped: free is [end, begin)
    offset = end;
    return end + room <= begin;
  }
  if (end + room <= capacity_) {  // free is [end, capacity) and [0, begin)
    offset = end;
    return true;
  }
  return room <= begin;
}

char* StagingRing::reserve(std::int64_t bytes) {
  const std::int64_t room = room_of(bytes);
  SHERD_CHECK(room <= capacity_, "a block of {} bytes in a ring of {}", bytes, capacity_);
  std::unique_lock lock(mutex_);
  std::int64_t offset = 0;
  changed_.wait(lock, [&] { return stopped_ || find_room(room, offset); });
  if (stopped_) return nullptr;
  reserved_.push_back({offset, room});
  return memory_ + offset;
}

void StagingRing::publish(const Block& block) {
  const std::lock_guard lock(mutex_);
  published_.push_back(block);
  changed_.notify_all();
}

void StagingRing::finish() {
  const std::lock_guard lock(mutex_);
  finished_ = true;
  changed_.notify_all();
}

bool StagingRing::take(Block& block) {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return stopped_ || finished_ || !published_.empty(); });
  if (stopped_ || published_.empty()) return false;
  block = published_.front();
  published_.pop_front();
  return true;
}

void StagingRing::release(const Block& block) {
  const std::lock_guard lock(mutex_);
  const auto reservation = std::find_if(
      reserved_.begin(), reserved_.end(),
      [&](const Reservation& candidate) { return memory_ + candidate.offset == block.data; });
  SHERD_CHECK(reservation != reserved_.end(), "a block that the ring doesn't know");
  reservation->released = true;
  while (!reserved_.empty() && reserved_.front().released) reserved_.pop_front();
  changed_.notify_all();
}

void StagingRing::stop() {
  const std::lock_guard lock(mutex_);
  stopped_ = true;
  changed_.notify_all();
}

}  // namespace sherd::checkpoint
