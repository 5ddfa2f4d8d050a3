/// What a kernel's front does when it is asked for a device that this program can't compute on.
#pragma once

#include <string_view>

namespace sherd::kernels {

/// Throws UsageError: `kernel` was asked for on a CUDA device.
[[noreturn]] void no_cuda_kernel(std::string_view kernel);

}  // namespace sherd::kernels
