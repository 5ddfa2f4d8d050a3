// core/cuda_device.h on the emulated GPU, where NVIDIA's headers aren't there to compile the real
// sources against (tests/fake_cuda): memory is the host's, work is done at the call.
#include "core/cuda_device.h"

#include <atomic>
#include <cstring>

#include "core/cuda_error.h"
#include "core/thread_team.h"
#include "tests/emulated_gpu/races.h"

namespace sherd {
namespace {

class EmulatedEvent final : public Event {};

class EmulatedStream final : public CudaStream {
 public:
  EmulatedStream(StreamOptions options, CudaStreamOptions cuda)
      : CudaStream(std::move(options)), cuda_(cuda), team_(1) {}
  const CudaStreamOptions& cuda() const override { return cuda_; }
  CUstream_st* handle() const override { return nullptr; }
  void* mailbox() override { return mailbox_; }
  void run(std::string_view, std::function<void()> work) override { work(); }
  std::unique_ptr<Event> make_event() const override { return std::make_unique<EmulatedEvent>(); }
  void record(Event&) override {}
  void wait(const Event&) override {}
  void synchronize() override {}
  std::chrono::nanoseconds waited() const override { return {}; }
  void communicate(std::size_t, const std::function<void()>& calls) override { calls(); }
  ThreadTeam& team() override { return team_; }

 private:
  CudaStreamOptions cuda_;
  ThreadTeam team_;
  alignas(16) unsigned char mailbox_[kMailboxBytes];
};

class CountedMemory final : public ArenaMemory {
 public:
  explicit CountedMemory(std::int64_t bytes) : memory_(host_arena_memory(bytes)) {
    all_bytes += bytes;
  }
  ~CountedMemory() override { all_bytes -= bytes(); }
  char* data() const override { return memory_->data(); }
  std::int64_t bytes() const override { return memory_->bytes(); }
  std::int64_t resident_bytes() const override { return 0; }
  void zero(void* data, std::int64_t bytes) override { memory_->zero(data, bytes); }
  void allow(void* data, std::int64_t bytes) noexcept override { memory_->allow(data, bytes); }
  void forbid(void* data, std::int64_t bytes) noexcept override { memory_->forbid(data, bytes); }

  static inline std::atomic<std::int64_t> all_bytes = 0;

 private:
  std::unique_ptr<ArenaMemory> memory_;
};

}  // namespace

void check_cuda(cudaError_t, std::string_view) {}
CudaSystem cuda_system() {
  CudaSystem system;
  CudaDevice& device = system.devices.emplace_back();
  device.name = "emulated";
  device.total_bytes = std::int64_t{4} << 30;
  return system;
}
void use_cuda_device(int) {}
std::unique_ptr<CudaStream> make_cuda_stream(StreamOptions options, CudaStreamOptions cuda) {
  return std::make_unique<EmulatedStream>(std::move(options), cuda);
}
std::unique_ptr<ArenaMemory> cuda_arena_memory(std::int64_t bytes) {
  return std::make_unique<CountedMemory>(cuda_arena_bytes(bytes));
}
std::int64_t cuda_bytes_in_use(int) {
  return CountedMemory::all_bytes;
}
std::int64_t cuda_bytes_free(int device) {
  return cuda_system().devices[0].total_bytes - cuda_bytes_in_use(device);
}
std::unique_ptr<ArenaMemory> pinned_arena_memory(std::int64_t bytes) {
  return host_arena_memory(bytes);
}
std::shared_ptr<void> pinned_memory(std::int64_t bytes) {
  return {std::malloc(static_cast<std::size_t>(bytes)), std::free};
}

}  // namespace sherd

namespace emulated {

void enqueue(cudaStream_t, const char*, std::function<std::vector<Touched>()> work) {
  work();
}
std::vector<Piece> device_memory() {
  return {};
}
bool has_fake_machine() {
  return false;
}
std::vector<std::string> take_races() {
  return {};
}

}  // namespace emulated
