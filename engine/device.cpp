#include "engine/device.h"

#include <algorithm>
#include <array>
#include <set>

#include "core/cuda_device.h"
#include "engine/product_rate.h"
#include "engine/rank_memory.h"
#include "engine/system_info.h"
#include "engine/training_options.h"

namespace sherd::engine {
namespace {

Device cpu_device() {
  return {DeviceKind::kCpu, false, [](LaunchOptions& launch, PlanOfRank device, const PlanOfRank&) {
            launch.memory = [device = std::move(device)](int r) {
              return std::make_unique<Arena>(device(r));
            };
          }};
}

Device cuda_device() {
  return {DeviceKind::kCuda, true, [](LaunchOptions& launch, PlanOfRank device, PlanOfRank host) {
            launch.device = DeviceKind::kCuda;
            launch.memory = [device = std::move(device)](int r) { return cuda_arena(device(r)); };
            launch.host_memory = [host = std::move(host)](int r) { return pinned_arena(host(r)); };
          }};
}

std::string plural(int count, std::string_view word) {
  return fmt::format("{} {}{}", count, word, count == 1 ? "" : "s");
}

std::set<int> devices_in_use(const LaunchOptions& launch, int num_devices) {
  std::set<int> devices;
  for (int r = 0; r < launch.world_size; ++r) {
    devices.insert(device_of_rank(r, launch.world_size, num_devices, launch.share_device));
  }
  return devices;
}

}  // namespace

DeviceKind device_kind(const Recipe& recipe) {
  if (recipe.run.device == DeviceChoice::kCpu) return DeviceKind::kCpu;
  if (recipe.run.device == DeviceChoice::kCuda) return DeviceKind::kCuda;
  return cuda_system().problem.empty() ? DeviceKind::kCuda : DeviceKind::kCpu;
}

Device choose_device(const Recipe& recipe) {
  if (device_kind(recipe) == DeviceKind::kCpu) return cpu_device();
  require_cuda_devices(recipe.run.share_device ? 1 : static_cast<int>(recipe.world_size()));
  return cuda_device();
}

LaunchOptions launch_options(const Recipe& recipe) {
  LaunchOptions launch;
  launch.world_size = static_cast<int>(recipe.world_size());
  launch.threads_per_rank = static_cast<int>(recipe.run.num_threads);
  launch.device = device_kind(recipe);
  launch.share_device = recipe.run.share_device;
  launch.cuda.allow_tf32 = recipe.mixed_precision.allow_tf32;
  launch.cuda.deterministic = recipe.run.deterministic;
  launch.cuda.graphs = recipe.run.cuda_graphs;
  return launch;
}

std::string device_line(const LaunchOptions& launch) {
  if (launch.device == DeviceKind::kCuda) {
    const CudaSystem system = cuda_system();
    const auto num_devices = static_cast<int>(system.devices.size());
    if (num_devices == 0) return "GPUs: " + system.problem;
    const std::string where =
        launch.share_device ? std::string("sharing a GPU")
                            : std::string(launch.world_size == 1 ? "on a GPU" : "on a GPU each");
    return fmt::format("{} {}: {}", plural(launch.world_size, "rank"), where,
                       system.devices[0].name);
  }
  const int cores = num_usable_cores();
  const int threads = launch.compute_threads();
  std::string line = fmt::format("{} with {} each on {}", plural(launch.world_size, "rank"),
                                 plural(threads, "compute thread"), plural(cores, "core"));
  if (launch.world_size * threads > cores) {
    line += fmt::format(": more threads than cores, so ranks take turns and each is slower");
  }
  return line;
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

ProductRates product_rates(const Recipe& recipe, const LaunchOptions& launch) {
  if (launch.device == DeviceKind::kCpu) {
    return {measure_product_rate(
        std::min(num_usable_cores(), launch.world_size * launch.compute_threads()))};
  }
  const DType dtype = training_options(recipe).model.dtype;
  const CudaSystem system = cuda_system();
  const auto count =
      static_cast<double>(devices_in_use(launch, static_cast<int>(system.devices.size())).size());
  return {count * measure_product_rate_of_gpu(dtype, launch.cuda),
          count * dense_peak(system.devices[0].name, dtype, launch.cuda.allow_tf32)};
}

}  // namespace sherd::engine
