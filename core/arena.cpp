#include "core/arena.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>

#include "core/error.h"

#if defined(__SANITIZE_ADDRESS__) && defined(SHERD_POISON_ARENA)
#include <sanitizer/asan_interface.h>
#else
#define ASAN_POISON_MEMORY_REGION(address, bytes) ((void)(address), (void)(bytes))
#define ASAN_UNPOISON_MEMORY_REGION(address, bytes) ((void)(address), (void)(bytes))
#endif

namespace sherd {

Arena::Arena(MemoryPlan plan) : plan_(std::move(plan)) {
  mapped_bytes_ = static_cast<std::size_t>(std::max<std::int64_t>(plan_.arena_bytes(), 1));
  void* memory = mmap(nullptr, mapped_bytes_, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED) {
    throw TrainingError("the machine refused a mapping of {} bytes for one rank's memory: {}",
                        mapped_bytes_, std::strerror(errno));
  }
  memory_ = static_cast<char*>(memory);
  ASAN_POISON_MEMORY_REGION(memory_, mapped_bytes_);
  for (std::size_t i = 0; i < plan_.buffers().size(); ++i) {
    const bool is_new = places_.emplace(plan_.buffers()[i].spec.name, Place{i}).second;
    CHECK(is_new, "two buffers are planned as {}", plan_.buffers()[i].spec.name);
  }
  enter(kInit);
}

Arena::~Arena() {
  ASAN_UNPOISON_MEMORY_REGION(memory_, mapped_bytes_);
  munmap(memory_, mapped_bytes_);
}

std::vector<std::string> Arena::not_acquired() const {
  std::vector<std::string> names;
  for (const auto& [name, place] : places_) {
    if (!place.used_before) names.push_back(name);
  }
  std::sort(names.begin(), names.end());
  return names;
}

std::int64_t Arena::resident_bytes() const {
  const auto page = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
  std::array<unsigned char, 4096> pages{};
  std::size_t num_resident = 0;
  for (std::size_t begin = 0; begin < mapped_bytes_; begin += pages.size() * page) {
    const std::size_t bytes = std::min(mapped_bytes_ - begin, pages.size() * page);
    const std::size_t num_pages = (bytes + page - 1) / page;
    if (mincore(memory_ + begin, bytes, pages.data()) != 0) return 0;
    num_resident += static_cast<std::size_t>(
        std::count_if(pages.begin(), pages.begin() + static_cast<std::ptrdiff_t>(num_pages),
                      [](unsigned char state) { return (state & 1) != 0; }));
  }
  return static_cast<std::int64_t>(num_resident * page);
}

void* Arena::place(const BufferSpec& spec) {
  const auto found = places_.find(spec.name);
  CHECK(found != places_.end(), "buffer {} is not in the memory plan", spec.name);
  Place& place = found->second;
  const PlannedBuffer& planned = plan_.buffers()[place.buffer];
  CHECK(planned.spec == spec, "buffer {} was planned otherwise: {} bytes, not {}", spec.name,
        planned.spec.bytes(), spec.bytes());
  CHECK(!place.taken, "buffer {} is acquired twice", spec.name);
  char* data = memory_ + planned.offset;
  if (spec.phases == kAlways && place.used_before) {  // a new mapping is zero by itself
    ASAN_UNPOISON_MEMORY_REGION(data, static_cast<std::size_t>(spec.bytes()));
    std::memset(data, 0, static_cast<std::size_t>(spec.bytes()));
  }
  place.taken = place.used_before = true;
  return data;
}

void Arena::remove(const BufferSpec& spec, void*) noexcept {
  places_.at(spec.name).taken = false;
}

void Arena::came_alive(const BufferSpec& spec, void* data) noexcept {
  ASAN_UNPOISON_MEMORY_REGION(data, static_cast<std::size_t>(spec.bytes()));
}

void Arena::went_away(const BufferSpec& spec, void* data) noexcept {
  ASAN_POISON_MEMORY_REGION(data, static_cast<std::size_t>(spec.bytes()));
}

}  // namespace sherd
