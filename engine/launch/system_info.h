/// Describes this program and this machine.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "core/cuda_device.h"

namespace sherd::engine {

std::string_view version();

/// Number of cores that this process may use, by its affinity and its control group's quota
/// (rounded up, at least one). In a container that sees 64 cores and may use 2, it is 2.
int num_usable_cores();

/// "AMD EPYC 7B13", as the system names it; "unknown".
std::string processor_name();

/// The lines of `sherd info` about GPUs: one each, or why there is none.
std::vector<std::string> gpu_lines(const CudaSystem& system);

/// Memory that this process may use: the machine's, or its control group's limit if lower.
std::int64_t usable_memory_bytes();

/// What `sherd info` prints. `nccl_log`: the text of a log of NCCL (engine/launch/rdma_check.h).
std::string system_info(const std::string& nccl_log = "");

/// A control group's processor time quota in cores; 0: none. `text` is the content of
/// `cpu.max` (version 2: "max 100000", "200000 100000") or "<quota> <period>" of version 1.
double cores_of_quota(std::string_view text);

/// The limit in a control group's `memory.max` or `memory.limit_in_bytes`; 0: none.
std::int64_t bytes_of_limit(std::string_view text);

}  // namespace sherd::engine
