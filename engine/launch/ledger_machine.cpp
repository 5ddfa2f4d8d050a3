#include "engine/launch/ledger_machine.h"

#include <sys/mman.h>

#include <algorithm>

#include "core/arena.h"
#include "sharding/comm/ledger_group.h"

namespace sherd::engine {
namespace {

// Address space; memory is only used where a step reads or writes its few numbers.
class ReservedMemory final : public ArenaMemory {
 public:
  explicit ReservedMemory(std::int64_t bytes) : bytes_(std::max<std::int64_t>(bytes, 1)) {
    void* data = mmap(nullptr, static_cast<std::size_t>(bytes_), PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (data == MAP_FAILED) {
      throw TrainingError("{} bytes of addresses can't be reserved for a plan", bytes_);
    }
    data_ = static_cast<char*>(data);
  }
  ~ReservedMemory() override { munmap(data_, static_cast<std::size_t>(bytes_)); }

  char* data() const override { return data_; }
  std::int64_t bytes() const override { return bytes_; }
  std::int64_t resident_bytes() const override { return 0; }
  void zero(void*, std::int64_t) override {}
  void allow(void*, std::int64_t) noexcept override {}
  void forbid(void*, std::int64_t) noexcept override {}

 private:
  const std::int64_t bytes_;
  char* data_ = nullptr;
};

class LedgerMachine final : public Machine {
 public:
  LedgerMachine(int rank, const CudaStreamOptions& stream, Ledger& ledger)
      : rank_(rank), stream_(stream), ledger_(ledger) {}

  DeviceTraits traits() const override { return {DeviceKind::kCuda, true}; }
  RanksHere ranks_here(int) const override { return {rank_, 1, 1}; }
  std::unique_ptr<Stream> make_stream(StreamOptions options) const override {
    return std::make_unique<LedgerStream>(std::move(options), stream_, ledger_);
  }
  std::unique_ptr<Allocator> make_memory(MemoryPlan plan) const override {
    const std::int64_t bytes = plan.arena_bytes();
    return std::make_unique<Arena>(std::move(plan), std::make_unique<ReservedMemory>(bytes));
  }
  std::unique_ptr<Allocator> make_host_memory(MemoryPlan plan) const override {
    const std::int64_t bytes = plan.arena_bytes();
    auto memory = std::make_unique<ReservedMemory>(bytes);
    ledger_.is_host = [first = memory->data(), bytes](const void* address) {
      const auto* const at = static_cast<const char*>(address);
      return at >= first && at < first + bytes;
    };
    return std::make_unique<Arena>(std::move(plan), std::move(memory));
  }
  std::shared_ptr<sharding::Rendezvous> make_rendezvous(std::chrono::milliseconds) const override {
    return sharding::make_ledger_rendezvous();
  }
  std::string description(int world_size, int) const override {
    return world_size == 1 ? "on a GPU that isn't there" : "on GPUs that aren't there";
  }

 private:
  const int rank_;
  const CudaStreamOptions stream_;
  Ledger& ledger_;
};

}  // namespace

std::shared_ptr<const Machine> ledger_machine(int rank, const CudaStreamOptions& stream,
                                              Ledger& ledger) {
  return std::make_shared<LedgerMachine>(rank, stream, ledger);
}

}  // namespace sherd::engine
