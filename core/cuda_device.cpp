#include "core/cuda_device.h"

#include <algorithm>
#include <cstring>

#include "core/cuda_error.h"

namespace sherd {
namespace {

CudaDevice describe(int index) {
  cudaDeviceProp properties{};
  check_cuda(cudaGetDeviceProperties(&properties, index), "cudaGetDeviceProperties");
  CudaDevice device;
  device.index = index;
  device.name = properties.name;
  device.major = properties.major;
  device.minor = properties.minor;
  device.num_multiprocessors = properties.multiProcessorCount;
  char bus[32] = {};
  check_cuda(cudaDeviceGetPCIBusId(bus, sizeof bus, index), "cudaDeviceGetPCIBusId");
  device.pci_bus = bus;
  device.total_bytes = static_cast<std::int64_t>(properties.totalGlobalMem);
  return device;
}

struct MemoryOfDevice {
  std::size_t free = 0, total = 0;
};
MemoryOfDevice memory_of(int device) {
  use_cuda_device(device);
  MemoryOfDevice memory;
  check_cuda(cudaMemGetInfo(&memory.free, &memory.total), "cudaMemGetInfo");
  return memory;
}

class CudaArenaMemory final : public ArenaMemory {
 public:
  explicit CudaArenaMemory(std::int64_t bytes) : bytes_(cuda_arena_bytes(bytes)) {
    check_cuda(cudaGetDevice(&device_), "cudaGetDevice");
    std::size_t free = 0, total = 0;
    check_cuda(cudaMemGetInfo(&free, &total), "cudaMemGetInfo");
    const cudaError_t status = cudaMalloc(&memory_, static_cast<std::size_t>(bytes_));
    if (status == cudaErrorMemoryAllocation) {
      cudaGetLastError();  // it isn't sticky: the next launch shouldn't report it
      throw TrainingError(
          "GPU {} refused one allocation of {} bytes for a rank's memory; {} of its "
          "{} bytes were free. Close what else runs there, or plan a smaller run "
          "(sherd plan)",
          device_, bytes_, free, total);
    }
    check_cuda(status, "cudaMalloc");
    zero(memory_, bytes_);
  }
  ~CudaArenaMemory() override {
    cudaSetDevice(device_);
    cudaFree(memory_);
  }
  char* data() const override { return static_cast<char*>(memory_); }
  std::int64_t bytes() const override { return bytes_; }
  std::int64_t resident_bytes() const override { return 0; }
  // Streams of ours don't synchronise with the default stream: waiting makes the zeros visible.
  void zero(void* data, std::int64_t bytes) override {
    check_cuda(cudaMemset(data, 0, static_cast<std::size_t>(bytes)), "cudaMemset");
    check_cuda(cudaStreamSynchronize(cudaStreamLegacy), "cudaStreamSynchronize");
  }
  void allow(void*, std::int64_t) noexcept override {}
  void forbid(void*, std::int64_t) noexcept override {}

 private:
  void* memory_ = nullptr;
  std::int64_t bytes_;
  int device_ = 0;
};

class PinnedArenaMemory final : public ArenaMemory {
 public:
  explicit PinnedArenaMemory(std::int64_t bytes)
      : bytes_(std::max<std::int64_t>(bytes, 1)), memory_(pinned_memory(bytes_)) {
    zero(memory_.get(), bytes_);
  }
  char* data() const override { return static_cast<char*>(memory_.get()); }
  std::int64_t bytes() const override { return bytes_; }
  std::int64_t resident_bytes() const override { return bytes_; }
  void zero(void* data, std::int64_t bytes) override {
    std::memset(data, 0, static_cast<std::size_t>(bytes));
  }
  void allow(void*, std::int64_t) noexcept override {}
  void forbid(void*, std::int64_t) noexcept override {}

 private:
  std::int64_t bytes_;
  std::shared_ptr<void> memory_;
};

}  // namespace

void check_cuda(cudaError_t status, std::string_view call) {
  if (status == cudaSuccess) return;
  throw TrainingError("{} failed: {} ({})", call, cudaGetErrorString(status),
                      cudaGetErrorName(status));
}

CudaSystem cuda_system() {
  CudaSystem system;
  system.runtime_version = CUDART_VERSION;
  // Both calls fail without a driver; cuda_problem says what that means.
  if (cudaDriverGetVersion(&system.driver_version) != cudaSuccess) system.driver_version = 0;
  int num_devices = 0;
  const cudaError_t status = cudaGetDeviceCount(&num_devices);
  if (status != cudaSuccess) num_devices = 0;
  cudaGetLastError();
  system.problem = cuda_problem(system.driver_version, system.runtime_version, num_devices);
  if (system.problem.empty()) {
    for (int i = 0; i < num_devices; ++i) system.devices.push_back(describe(i));
  } else if (status != cudaSuccess && status != cudaErrorNoDevice && system.driver_version != 0) {
    system.problem += fmt::format(" (cudaGetDeviceCount: {})", cudaGetErrorString(status));
  }
  return system;
}

void use_cuda_device(int device) {
  check_cuda(cudaSetDevice(device), "cudaSetDevice");
}

std::int64_t cuda_bytes_in_use(int device) {
  const MemoryOfDevice memory = memory_of(device);
  return static_cast<std::int64_t>(memory.total - memory.free);
}
std::int64_t cuda_bytes_free(int device) {
  return static_cast<std::int64_t>(memory_of(device).free);
}

std::unique_ptr<ArenaMemory> cuda_arena_memory(std::int64_t bytes) {
  return std::make_unique<CudaArenaMemory>(bytes);
}
std::unique_ptr<ArenaMemory> pinned_arena_memory(std::int64_t bytes) {
  return std::make_unique<PinnedArenaMemory>(bytes);
}

std::shared_ptr<void> pinned_memory(std::int64_t bytes) {
  void* memory = nullptr;
  check_cuda(cudaHostAlloc(&memory, static_cast<std::size_t>(bytes), cudaHostAllocPortable),
             "cudaHostAlloc");
  return {memory, [](void* data) { cudaFreeHost(data); }};
}

}  // namespace sherd
