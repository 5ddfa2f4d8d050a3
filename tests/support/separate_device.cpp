#include "tests/support/separate_device.h"

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
    CHECK(mprotect(memory, bytes, access) == 0, "mprotect: {}", std::strerror(errno));
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
    CHECK(data_ != MAP_FAILED, "mmap: {}", std::strerror(errno));
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
  std::chrono::nanoseconds cpu_time() const override { return stream_->cpu_time(); }
  ThreadTeam& team() override { return stream_->team(); }

 private:
  std::unique_ptr<Stream> stream_;
};

}  // namespace

std::unique_ptr<Stream> SeparateDevice::make_stream(const StreamOptions& options) const {
  const bool at_once = options.name == "compute" && !deferred_;
  return std::make_unique<OpeningStream>(at_once ? make_cpu_compute_stream(options)
                                                 : make_cpu_worker_stream(options));
}

std::unique_ptr<ArenaMemory> SeparateDevice::make_memory(std::int64_t bytes) {
  return std::make_unique<ClosedMemory>(bytes);
}

engine::Device SeparateDevice::as_device() const {
  const auto use_for = [device = *this](engine::LaunchOptions& launch, engine::PlanOfRank plan,
                                        engine::PlanOfRank host) {
    launch.make_stream = [device](const StreamOptions& options) {
      return device.make_stream(options);
    };
    launch.memory = [plan = std::move(plan)](int r) {
      MemoryPlan of_rank = plan(r);
      auto memory = make_memory(of_rank.arena_bytes());
      return std::make_unique<Arena>(std::move(of_rank), std::move(memory));
    };
    launch.host_memory = [host = std::move(host)](int r) {
      return std::make_unique<Arena>(host(r));
    };
  };
  return {DeviceKind::kCpu, true, use_for};
}

}  // namespace sherd::testing
