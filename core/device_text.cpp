// What is said about GPUs, whether or not this program can use them.
#include <fmt/format.h>

#include "core/cuda_device.h"

namespace sherd {

std::string cuda_version_text(int version) {
  return fmt::format("{}.{}", version / 1000, version % 1000 / 10);
}

std::string cuda_problem(int driver_version, int runtime_version, int num_devices) {
  if (runtime_version == 0) return "this program was built without CUDA";
  if (driver_version == 0) return "no NVIDIA driver was found on this machine";
  if (driver_version / 1000 < runtime_version / 1000) {
    return fmt::format(
        "the NVIDIA driver runs CUDA up to {}, but this program was built with {}; install a newer "
        "driver",
        cuda_version_text(driver_version), cuda_version_text(runtime_version));
  }
  if (num_devices == 0) return "the NVIDIA driver shows no GPU to this process";
  return "";
}

void require_cuda_devices(int num_devices) {
  const CudaSystem system = cuda_system();
  if (!system.problem.empty()) {
    throw UsageError("run.device is cuda, but {}; set run.device: cpu", system.problem);
  }
  const auto found = static_cast<int>(system.devices.size());
  if (found < num_devices) {
    throw UsageError(
        "{} ranks need a GPU each, but this machine shows {}; use fewer ranks, or "
        "--share-device to put several ranks on one GPU",
        num_devices, found);
  }
}

CudaStream& cuda_stream(Stream& stream) {
  auto* cuda = dynamic_cast<CudaStream*>(&stream);
  CHECK(cuda, "stream {} is not a CUDA stream", stream.name());
  return *cuda;
}

}  // namespace sherd
