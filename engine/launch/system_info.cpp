#include "engine/launch/system_info.h"

#include <fmt/format.h>
#include <sched.h>
#include <sherd_version.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <fstream>
#include <sstream>
#include <thread>
#include <vector>

#include "engine/launch/memory_nodes.h"
#include "engine/launch/pci_tree.h"
#include "engine/launch/rdma_check.h"
#include "kernels/isa.h"
#include "kernels/libraries.h"
#include "sharding/comm/nccl.h"
#include "sharding/processes/mpi.h"

namespace sherd::engine {
namespace {

/// The value of the first line "name : value" of a file in /proc.
std::string proc_value(const std::string& path, std::string_view name) {
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    const std::size_t colon = line.find(':');
    if (!line.starts_with(name) || colon == std::string::npos) continue;
    const std::size_t begin = line.find_first_not_of(" \t", colon + 1);
    return begin == std::string::npos ? "" : line.substr(begin);
  }
  return "";
}

double gib_of(const std::string& proc_kib) {
  return std::atof(proc_kib.c_str()) / (1 << 20);
}

// Those that the process began with: threads of ranks may run on fewer later.
int cores_of_affinity() {
  cpu_set_t set;
  CPU_ZERO(&set);
  // Fails on machines with more cores than the set holds; then all of them count.
  if (sched_getaffinity(0, sizeof set, &set) == 0) return std::max(1, CPU_COUNT(&set));
  return std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
}

/// This process's control group and those above it, up to the root: folders of version 2.
std::vector<std::string> control_groups() {
  std::string group;
  std::istringstream groups(text_in("/proc/self/cgroup"));
  for (std::string line; std::getline(groups, line);) {
    if (line.starts_with("0::")) group = line.substr(3);
  }
  std::vector<std::string> folders;
  while (true) {
    folders.push_back("/sys/fs/cgroup" + group);
    if (group.empty()) return folders;
    group.resize(group.rfind('/') == std::string::npos ? 0 : group.rfind('/'));
  }
}

/// The smallest quota from this process's control group up to the root; 0 for none.
double cores_of_control_groups() {
  double smallest = 0;
  const auto consider = [&](const std::string& text) {
    const double cores = cores_of_quota(text);
    if (cores > 0 && (smallest == 0 || cores < smallest)) smallest = cores;
  };
  for (const std::string& folder : control_groups()) consider(text_in(folder + "/cpu.max"));
  const std::string version_1 = "/sys/fs/cgroup/cpu/cpu.cfs_";
  consider(text_in(version_1 + "quota_us") + " " + text_in(version_1 + "period_us"));
  return smallest;
}

std::string isa_text() {
  std::string available;
  for (const kernels::Isa isa : kernels::available_isas()) {
    available += fmt::format("{}{}", available.empty() ? "" : ", ", kernels::name_of(isa));
  }
  return fmt::format("{} (SHERD_ISA chooses among {})", kernels::name_of(kernels::isa()),
                     available);
}

}  // namespace

std::vector<std::string> gpu_lines(const CudaSystem& system) {
  if (!system.problem.empty()) return {"no GPU: " + system.problem};
  std::vector<std::string> lines;
  for (const CudaDevice& device : system.devices) {
    lines.push_back(fmt::format(
        "cuda {}: {}, compute capability {}.{}, {} multiprocessors, {:.1f} GiB, {}", device.index,
        device.name, device.major, device.minor, device.num_multiprocessors,
        static_cast<double>(device.total_bytes) / (1 << 30), device.pci_bus));
  }
  lines.push_back(fmt::format("CUDA {} in this program, the driver runs up to {}",
                              cuda_version_text(system.runtime_version),
                              cuda_version_text(system.driver_version)));
  return lines;
}

std::string_view version() {
  return SHERD_VERSION;
}

double cores_of_quota(std::string_view text) {
  std::istringstream words{std::string(text)};
  double quota = 0, period = 0;
  if (!(words >> quota >> period) || quota <= 0 || period <= 0) return 0;
  return quota / period;
}

std::int64_t bytes_of_limit(std::string_view text) {
  std::int64_t bytes = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), bytes);
  return error == std::errc() && bytes > 0 ? bytes : 0;
}

std::int64_t usable_memory_bytes() {
  std::int64_t bytes = static_cast<std::int64_t>(sysconf(_SC_PHYS_PAGES)) * sysconf(_SC_PAGESIZE);
  const auto consider = [&](const std::string& text) {
    const std::int64_t limit = bytes_of_limit(text);
    if (limit > 0) bytes = std::min(bytes, limit);
  };
  for (const std::string& folder : control_groups()) consider(text_in(folder + "/memory.max"));
  consider(text_in("/sys/fs/cgroup/memory/memory.limit_in_bytes"));
  return bytes;
}

int num_usable_cores() {
  static const int cores = cores_of_affinity();
  const double quota = cores_of_control_groups();
  return quota > 0 ? std::clamp(static_cast<int>(std::ceil(quota)), 1, cores) : cores;
}

std::string system_info(const std::string& nccl_log) {
  std::string out;
  const auto line = [&](std::string_view name, const std::string& value) {
    out += fmt::format("{:<10} {}\n", name, value);
  };
  line("version", fmt::format("sherd {}", version()));
  line("build",
       fmt::format("{}, g++ {}, C++{}", SHERD_BUILD_TYPE, __VERSION__, __cplusplus / 100 % 100));
  line("libraries", SHERD_LIBRARIES);
  const std::string mpi = sharding::mpi_library();
  line("processes", mpi.empty() ? "one: built without MPI" : "one or more, with " + mpi);
  line("devices", "cpu");
  const CudaSystem cuda = cuda_system();
  for (const std::string& text : gpu_lines(cuda)) line("", text);
  if (cuda.runtime_version > 0) {
    for (const LoadedLibrary& library : kernels::loaded_libraries()) line("", library.text());
    line("", sharding::nccl_library().text());
  }
  const auto variable = [](const char* name) {
    const char* value = std::getenv(name);
    return std::string(value == nullptr ? "" : value);
  };
  for (const std::string& text : rdma_report({.nccl_log = nccl_log, .variable = variable})) {
    line("", text);
  }
  line("processor", processor_name());
  line("matmuls", isa_text());
  line("cores", fmt::format("{}, usable by this process: {}", std::thread::hardware_concurrency(),
                            num_usable_cores()));
  for (const MemoryNode& node : memory_nodes()) {
    line("", fmt::format("memory node {}: cores {}", node.number, list_of_cores(node.cores)));
  }
  line("memory", fmt::format("{:.1f} GiB, {:.1f} GiB available",
                             gib_of(proc_value("/proc/meminfo", "MemTotal")),
                             gib_of(proc_value("/proc/meminfo", "MemAvailable"))));
  return out;
}

std::string processor_name() {
  const std::string model = proc_value("/proc/cpuinfo", "model name");
  return model.empty() ? "unknown" : model;
}

}  // namespace sherd::engine
