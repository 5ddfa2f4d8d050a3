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

namespace {

class HostArenaMemory final : public ArenaMemory {
 public:
  explicit HostArenaMemory(std::int64_t bytes) : bytes_(std::max<std::int64_t>(bytes, 1)) {
    void* memory = mmap(nullptr, static_cast<std::size_t>(bytes_), PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED) {
      throw TrainingError("the machine refused a mapping of {} bytes for one rank's memory: {}",
                          bytes_, std::strerror(errno));
    }
    memory_ = static_cast<char*>(memory);
    // Pages of 2 MiB where the system has them: a hint, whose refusal changes nothing.
    madvise(memory_, static_cast<std::size_t>(bytes_), MADV_HUGEPAGE);
    forbid(memory_, bytes_);
  }
  ~HostArenaMemory() override {
    allow(memory_, bytes_);
    munmap(memory_, static_cast<std::size_t>(bytes_));
  }
  char* data() const override { return memory_; }
  std::int64_t bytes() const override { return bytes_; }
  std::int64_t resident_bytes() const override {
    const auto page = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
    const auto mapped = static_cast<std::size_t>(bytes_);
    std::array<unsigned char, 4096> pages{};
    std::size_t num_resident = 0;
    for (std::size_t begin = 0; begin < mapped; begin += pages.size() * page) {
      const std::size_t bytes = std::min(mapped - begin, pages.size() * page);
      const std::size_t num_pages = (bytes + page - 1) / page;
      if (mincore(memory_ + begin, bytes, pages.data()) != 0) return 0;
      num_resident += static_cast<std::size_t>(
          std::count_if(pages.begin(), pages.begin() + static_cast<std::ptrdiff_t>(num_pages),
                        [](unsigned char state) { return (state & 1) != 0; }));
    }
    return static_cast<std::int64_t>(num_resident * page);
  }
  void zero(void* data, std::int64_t bytes) override {
    allow(data, bytes);
    std::memset(data, 0, static_cast<std::size_t>(bytes));
  }
  void allow(void* data, std::int64_t bytes) noexcept override {
    ASAN_UNPOISON_MEMORY_REGION(data, static_cast<std::size_t>(bytes));
  }
  void forbid(void* data, std::int64_t bytes) noexcept override {
    ASAN_POISON_MEMORY_REGION(data, static_cast<std::size_t>(bytes));
  }

 private:
  char* memory_ = nullptr;
  std::int64_t bytes_;
};

}  // namespace

std::unique_ptr<ArenaMemory> host_arena_memory(std::int64_t bytes) {
  return std::make_unique<HostArenaMemory>(bytes);
}

Arena::Arena(MemoryPlan plan) : Arena(plan, host_arena_memory(plan.arena_bytes())) {}

Arena::Arena(MemoryPlan plan, std::unique_ptr<ArenaMemory> memory)
    : plan_(std::move(plan)), memory_(std::move(memory)) {
  SHERD_CHECK(memory_->bytes() >= plan_.arena_bytes(), "{} bytes of memory for a plan of {}",
              memory_->bytes(), plan_.arena_bytes());
  for (std::size_t i = 0; i < plan_.buffers().size(); ++i) {
    const bool is_new = places_.emplace(plan_.buffers()[i].spec.name, Place{i}).second;
    SHERD_CHECK(is_new, "two buffers are planned as {}", plan_.buffers()[i].spec.name);
  }
  enter(kInit);
}

Arena::~Arena() = default;

std::vector<std::string> Arena::not_acquired() const {
  std::vector<std::string> names;
  for (const auto& [name, place] : places_) {
    if (!place.used_before) names.push_back(name);
  }
  std::sort(names.begin(), names.end());
  return names;
}

void* Arena::place(const BufferSpec& spec) {
  const auto found = places_.find(spec.name);
  SHERD_CHECK(found != places_.end(), "buffer {} is not in the memory plan", spec.name);
  Place& place = found->second;
  const PlannedBuffer& planned = plan_.buffers()[place.buffer];
  SHERD_CHECK(planned.spec == spec, "buffer {} was planned otherwise: {} bytes, not {}", spec.name,
              planned.spec.bytes(), spec.bytes());
  SHERD_CHECK(!place.taken, "buffer {} is acquired twice", spec.name);
  char* data = memory_->data() + planned.offset;
  // New memory is zero by itself.
  if (spec.phases == kAlways && place.used_before) memory_->zero(data, spec.bytes());
  place.taken = place.used_before = true;
  return data;
}

void Arena::remove(const BufferSpec& spec, void*) noexcept {
  places_.at(spec.name).taken = false;
}

void Arena::came_alive(const BufferSpec& spec, void* data) noexcept {
  memory_->allow(data, spec.bytes());
}

void Arena::went_away(const BufferSpec& spec, void* data) noexcept {
  memory_->forbid(data, spec.bytes());
}

}  // namespace sherd
