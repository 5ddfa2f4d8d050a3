#include "tests/support/devices/separate_device.h"

#include <sys/mman.h>

#include <cstring>
#include <mutex>
#include <set>

#include "core/error.h"

namespace sherd::testing {
namespace {

// One gate for the memory of all ranks: their communicators read one another's.
class Gate {
 public:
  void add(void* memory, std::size_t bytes) {
    std::lock_guard lock(mutex_);
    pieces_.emplace(memory, bytes);
    protect(memory, bytes);
  }
  void remove(void* memory, std::size_t bytes) {
    std::lock_guard lock(mutex_);
    pieces_.erase({memory, bytes});
  }
  void open() {
    std::lock_guard lock(mutex_);
    if (num_open_++ == 0) protect_all();
  }
  void close() {
    std::lock_guard lock(mutex_);
    if (--num_open_ == 0) protect_all();
  }

 private:
  void protect(void* memory, std::size_t bytes) const {
    const int access = num_open_ > 0 ? PROT_READ | PROT_WRITE : PROT_NONE;
    SHERD_CHECK(mprotect(memory, bytes, access) == 0, "mprotect: {}", std::strerror(errno));
  }
  void protect_all() const {
    for (const auto& [memory, bytes] : pieces_) protect(memory, bytes);
  }
  std::mutex mutex_;
  std::set<std::pair<void*, std::size_t>> pieces_;
  int num_open_ = 0;
};

Gate& gate() {
  static Gate gate;
  return gate;
}

class Opened {
 public:
  Opened() { gate().open(); }
  ~Opened() { gate().close(); }
  Opened(const Opened&) = delete;
  Opened& operator=(const Opened&) = delete;
};

class ClosedMemory final : public ArenaMemory {
 public:
  explicit ClosedMemory(std::int64_t bytes) : bytes_(std::max<std::int64_t>(bytes, 1)) {
    data_ = mmap(nullptr, size(), PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    SHERD_CHECK(data_ != MAP_FAILED, "mmap: {}", std::strerror(errno));
    gate().add(data_, size());
  }
  ~ClosedMemory() override {
    gate().remove(data_, size());
    munmap(data_, size());
  }
  char* data() const override { return static_cast<char*>(data_); }
  std::int64_t bytes() const override { return bytes_; }
  std::int64_t resident_bytes() const override { return 0; }
  void zero(void* data, std::int64_t bytes) override {
    const Opened opened;
    std::memset(data, 0, static_cast<std::size_t>(bytes));
  }
  void allow(void*, std::int64_t) noexcept override {}
  void forbid(void*, std::int64_t) noexcept override {}

 private:
  std::size_t size() const { return static_cast<std::size_t>(bytes_); }
  std::int64_t bytes_;
  void* data_ = nullptr;
};

class OpeningStream final : public Stream {
 public:
  explicit OpeningStream(std::unique_ptr<Stream> stream)
      : Stream(stream->options()), stream_(std::move(stream)) {}

  DeviceKind device() const override { return stream_->device(); }
  void run(std::string_view label, std::function<void()> work) override {
    stream_->run(label, [work = std::move(work)] {
      const Opened opened;
      work();
    });
  }
  std::unique_ptr<Event> make_event() const override { return stream_->make_event(); }
  void record(Event& event) override { stream_->record(event); }
  void wait(const Event& event) override { stream_->wait(event); }
  void synchronize() override { stream_->synchronize(); }
  std::chrono::nanoseconds waited() const override { return stream_->waited(); }
  std::chrono::nanoseconds waited_for(std::size_t kind) const override {
    return stream_->waited_for(kind);
  }
  std::chrono::nanoseconds cpu_time() const override { return stream_->cpu_time(); }
  ThreadTeam& team() override { return stream_->team(); }

 private:
  std::unique_ptr<Stream> stream_;
};

}  // namespace

std::unique_ptr<Stream> SeparateDevice::make_stream(StreamOptions options) const {
  if (hooked_rank_.value_or(options.rank) != options.rank) options.hook = nullptr;
  if (streams_) return std::make_unique<OpeningStream>(streams_->make_stream(options));
  const bool at_once = options.purpose == StreamPurpose::kCompute && !deferred_;
  return std::make_unique<OpeningStream>(at_once ? make_cpu_compute_stream(std::move(options))
                                                 : make_cpu_worker_stream(std::move(options)));
}

std::unique_ptr<Allocator> SeparateDevice::make_memory(MemoryPlan plan) const {
  auto memory = std::make_unique<ClosedMemory>(plan.arena_bytes());
  return std::make_unique<Arena>(std::move(plan), std::move(memory));
}

}  // namespace sherd::testing
