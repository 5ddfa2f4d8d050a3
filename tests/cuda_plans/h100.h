/// An H100 that cuDNN makes plans for without one.
#pragma once

#include <cudnn_frontend.h>

#include <memory>
#include <string>
#include <vector>

#include "core/error.h"

namespace sherd::kernels::cuda {

// In cuDNN's own words (CUDNN_ATTR_DEVICEPROP_JSON_REPRESENTATION, its keys from what cuDNN 9.19 says
// is missing; the numbers are NVIDIA's for the SXM5 board).
inline constexpr const char* kH100 =
    R"({"maxGridSize": [2147483647, 65535, 65535], "maxBlockSize": [1024, 1024, 64],
        "regsPerBlock": 65536, "multiProcessorCount": 132, "warpSize": 32,
        "maxSharedMemoryPerBlock": 49152, "maxSharedMemoryPerBlockOptin": 232448,
        "reservedSharedMemoryPerBlock": 1024, "maxRegistersPerSM": 65536, "maxCtasPerSM": 32,
        "maxThreadsPerBlock": 1024, "maxThreadsPerSM": 2048, "pciDeviceId": 9008,
        "isTccDriver": 0, "supportCoopLaunch": 1, "smClockRateKHz": 1980000,
        "memClockRateKHz": 2619000, "l2CacheSize": 52428800,
        "deviceName": "NVIDIA H100 80GB HBM3", "deviceVer": 900, "driverVer": 13000,
        "cudaDeviceId": 0, "totalGlobalMem": 85000000000, "runtimeVer": 13000, "smVersion": 900,
        "memBusWidth": 5120, "ecc": 0})";

inline std::shared_ptr<const cudnn_frontend::DeviceProperties> h100() {
  const std::string text = kH100;
  std::vector<std::uint8_t> bytes(text.begin(), text.end());
  bytes.push_back(0);
  auto properties = std::make_shared<cudnn_frontend::DeviceProperties>();
  cudnn_frontend::error_t status = properties->deserialize(bytes);
  SHERD_CHECK(status.is_good(), "{}", status.get_message());
  return properties;
}

}  // namespace sherd::kernels::cuda
