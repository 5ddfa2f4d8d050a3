// What is said about GPUs, whether or not this program can use them.
#include <fmt/format.h>

#include "core/cuda_device.h"

namespace sherd {

std::string cuda_version_text(int version) {
  return fmt::format("{}.{}", version / 1000, version % 1000 / 10);
}

namespace {

// The first branch of NVIDIA's drivers that runs a major version of CUDA (CUDA Compatibility,
// "minor version compatibility").
std::string_view oldest_driver(int runtime_version) {
  switch (runtime_version / 1000) {
    case 12:
      return "525";
    case 13:
      return "580";
    default:
      return "of that version";
  }
}

}  // namespace

std::string cuda_problem(int driver_version, int runtime_version, int num_devices) {
  if (runtime_version == 0) return "this program was built without CUDA";
  if (driver_version == 0) return "no NVIDIA driver was found on this machine";
  if (driver_version / 1000 < runtime_version / 1000) {
    return fmt::format(
        "the NVIDIA driver runs CUDA up to {}, but this program was built with {}; install driver "
        "{} "
        "or newer, or build it with a CUDA {} toolkit (the same sources; not compiled so far)",
        cuda_version_text(driver_version), cuda_version_text(runtime_version),
        oldest_driver(runtime_version), driver_version / 1000);
  }
  if (num_devices == 0) return "the NVIDIA driver shows no GPU to this process";
  return "";
}

std::string LoadedLibrary::text() const {
  return fmt::format("{} {}{} from {}", name, version,
                     cuda == 0 ? "" : fmt::format(" for CUDA {}", cuda_version_text(cuda)),
                     path.empty() ? "an unknown place" : path);
}

std::string library_problem(const LoadedLibrary& library, int runtime_version) {
  if (library.cuda == 0 || library.cuda / 1000 == runtime_version / 1000) return "";
  return fmt::format(
      "this program was built with CUDA {}, but {} was loaded; put the folder of CUDA {}'s first "
      "into "
      "LD_LIBRARY_PATH",
      cuda_version_text(runtime_version), library.text(), runtime_version / 1000);
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
  SHERD_CHECK(cuda, "stream {} is not a CUDA stream", stream.name());
  return *cuda;
}

}  // namespace sherd
