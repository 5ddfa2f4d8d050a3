// Replaces sharding/comm/nccl.cpp in a program built without CUDA.
#include "sharding/comm/nccl.h"

#include "core/cuda_device.h"

namespace sherd::sharding {

LoadedLibrary nccl_library() {
  throw UsageError("{}", cuda_problem(0, 0, 0));
}

std::shared_ptr<Rendezvous> make_nccl_rendezvous(const NcclRanks&, std::chrono::milliseconds,
                                                 NcclProcesses*) {
  throw UsageError("{}; set run.device: cpu", cuda_problem(0, 0, 0));
}
std::shared_ptr<Rendezvous> make_nccl_rendezvous(std::vector<int>, std::chrono::milliseconds) {
  throw UsageError("{}; set run.device: cpu", cuda_problem(0, 0, 0));
}

}  // namespace sherd::sharding
