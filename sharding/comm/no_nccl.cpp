// The twin of sharding/comm/nccl.cpp in a program built without CUDA.
#include "sharding/comm/nccl.h"

#include "core/cuda_device.h"

namespace sherd::sharding {

std::vector<std::unique_ptr<Communicator>> make_nccl_communicators(const std::vector<int>&) {
  throw UsageError("{}; set run.device: cpu", cuda_problem(0, 0, 0));
}

}  // namespace sherd::sharding
