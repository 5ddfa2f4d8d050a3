#include <algorithm>
#include <array>
#include <cstdlib>

#include "core/error.h"
#include "engine/launch/machine.h"
#include "engine/launch/rank_memory.h"
#include "kernels/libraries.h"
#include "sharding/comm/nccl.h"
#include "sharding/comm/shared_device.h"
#include "sharding/processes/gpus_of_processes.h"

namespace sherd::engine {
namespace {

// What can be used, with as many GPUs as asked.
CudaSystem usable_system(int num_devices) {
  require_cuda_devices(num_devices);
  CudaSystem system = cuda_system();
  for (const LoadedLibrary& library : kernels::loaded_libraries()) {
    const std::string problem = library_problem(library, system.runtime_version);
    if (!problem.empty()) throw UsageError("{}", problem);
  }
  return system;
}

// ", 34 measured ..." where a table says how (kernels/device_common/matmul_table.h).
std::string measured_matmuls(int device) {
  const std::string text = kernels::measured_matmuls(device);
  return text.empty() ? "" : ", " + text;
}

class CudaMachine : public Machine {
 public:
  CudaMachine(int world_size, const CudaMachineOptions& options) : options_(options) {
    const CudaSystem system = usable_system(options.share_device ? 1 : world_size);
    name_ = system.devices[0].name;
    const auto num_devices = static_cast<int>(system.devices.size());
    for (int r = 0; r < world_size; ++r) {
      devices_.push_back(device_of_rank(r, world_size, num_devices, options.share_device));
    }
  }

  DeviceTraits traits() const override { return {DeviceKind::kCuda, true}; }

  std::vector<int> devices_here() const override { return devices_; }
  void bind_rank(int r, int) const final { use_cuda_device(device_of(r)); }
  std::unique_ptr<Stream> make_stream(StreamOptions options) const final {
    CudaStreamOptions cuda = options_.stream;
    cuda.device = device_of(options.rank);
    return make_cuda_stream(std::move(options), cuda);
  }
  std::unique_ptr<Allocator> make_memory(MemoryPlan plan) const override {
    return cuda_arena(std::move(plan));
  }
  std::unique_ptr<Allocator> make_host_memory(MemoryPlan plan) const override {
    return pinned_arena(std::move(plan));
  }
  std::shared_ptr<sharding::Rendezvous> make_rendezvous(
      std::chrono::milliseconds peer_timeout) const override {
    return options_.share_device ? sharding::make_shared_device_rendezvous(peer_timeout)
                                 : sharding::make_nccl_rendezvous(devices_, peer_timeout);
  }

  std::string description(int world_size, int /*threads_per_rank*/) const override {
    const char* where = options_.share_device ? "sharing a GPU"
                        : world_size == 1     ? "on a GPU"
                                              : "on a GPU each";
    return fmt::format("{}: {}{}", where, name_, measured_matmuls(devices_[0]));
  }
  double matmul_peak(DType dtype, int) const override {
    const auto count = options_.share_device ? 1.0 : static_cast<double>(devices_.size());
    return count * dense_peak(name_, dtype, options_.stream.allow_tf32);
  }

 protected:
  CudaMachine(const CudaMachineOptions& options, std::string name)
      : options_(options), name_(std::move(name)) {}

  virtual int device_of(int r) const { return devices_[static_cast<std::size_t>(r)]; }

  const CudaMachineOptions options_;
  std::vector<int> devices_;  // of each rank
  std::string name_;
};

// Rank r is process r.
class CudaProcessMachine final : public CudaMachine {
 public:
  CudaProcessMachine(std::shared_ptr<sharding::Processes> processes, int device, std::string name,
                     const CudaMachineOptions& options)
      : CudaMachine(options, std::move(name)), processes_(std::move(processes)), device_(device) {}

  RanksHere ranks_here(int) const override {
    return {processes_->index(), 1, processes_->num_on_this_host()};
  }
  std::vector<int> devices_here() const override { return {device_}; }
  sharding::Processes* processes() const override { return processes_.get(); }

  std::shared_ptr<sharding::Rendezvous> make_rendezvous(
      std::chrono::milliseconds peer_timeout) const override {
    processes_->links().set_timeout(peer_timeout);
    return sharding::make_nccl_rendezvous(processes_->links(), device_, peer_timeout);
  }

  std::string description(int, int) const override {
    return fmt::format("in {} processes with a GPU each: {}{}", processes_->count(), name_,
                       measured_matmuls(device_));
  }
  double matmul_peak(DType dtype, int) const override {
    return processes_->count() * dense_peak(name_, dtype, options_.stream.allow_tf32);
  }

 private:
  int device_of(int) const override { return device_; }

  const std::shared_ptr<sharding::Processes> processes_;
  const int device_;
};

}  // namespace

std::shared_ptr<const Machine> cuda_machine(int world_size, const CudaMachineOptions& options) {
  return std::make_shared<CudaMachine>(world_size, options);
}

std::shared_ptr<const Machine> cuda_machine_of_process(
    std::shared_ptr<sharding::Processes> processes, const CudaMachineOptions& options) {
  if (options.share_device) {
    throw UsageError("--share-device puts ranks of one process on one GPU; start one process.");
  }
  // Where each process is shown its own GPU alone, that is the first.
  const bool shown_one =
      std::getenv("CUDA_VISIBLE_DEVICES") != nullptr && cuda_system().devices.size() == 1;
  const int device = shown_one ? 0 : processes->index_on_this_host();
  const CudaSystem system = usable_system(device + 1);
  std::string name = system.devices[static_cast<std::size_t>(device)].name;
  return std::make_shared<CudaProcessMachine>(std::move(processes), device, std::move(name),
                                              options);
}

int device_of_rank(int rank, int world_size, int num_devices, bool share_device) {
  if (share_device) return 0;  // ranks read each other's memory
  if (world_size > num_devices) {
    throw UsageError(
        "{} ranks need a GPU each, but this machine shows {}; use fewer ranks, or --share-device "
        "to put several ranks on one GPU",
        world_size, num_devices);
  }
  return rank;
}

double dense_peak(const std::string& gpu_name, DType dtype, bool allow_tf32) {
  struct Row {
    std::string_view name;
    double half, tf32, f32;  // Tflop/s
  };
  // The first name that is found; PCIe and NVL boards run slower than SXM's.
  constexpr std::array kRows = {Row{"H100 PCIe", 756, 378, 51}, Row{"H100 NVL", 835, 417, 60},
                                Row{"H200 NVL", 835, 417, 60},  Row{"H100", 989, 494, 67},
                                Row{"H200", 989, 494, 67},      Row{"A100", 312, 156, 19.5}};
  for (const Row& row : kRows) {
    if (gpu_name.find(row.name) == std::string::npos) continue;
    if (dtype != DType::kF32) return row.half * 1e12;
    return (allow_tf32 ? row.tf32 : row.f32) * 1e12;
  }
  return 0.0;
}

}  // namespace sherd::engine
