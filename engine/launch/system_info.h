/// What this program is and what this machine offers it.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "core/cuda_device.h"

namespace sherd::engine {

std::string_view version();

/// Cores that this process may use: its affinity, and the quota of its control group (rounded up,
/// at least one). A container that sees 64 cores and may use 2 gets 2.
int num_usable_cores();

/// What `sherd info` says about GPUs: one line each, or why there is none.
std::vector<std::string> gpu_lines(const CudaSystem& system);

/// Memory that this process may use: the machine's, or less by a limit of its control group.
std::int64_t usable_memory_bytes();

/// What `sherd info` prints.
std::string system_info();

/// The processor time quota of one control group in cores, or 0 for none. `text` is the content of
/// `cpu.max` (version 2: "max 100000", "200000 100000") or "<quota> <period>" of version 1.
double cores_of_quota(std::string_view text);

/// The limit in a control group's `memory.max` or `memory.limit_in_bytes`, or 0 for none.
std::int64_t bytes_of_limit(std::string_view text);

}  // namespace sherd::engine
