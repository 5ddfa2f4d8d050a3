// Replaces core/cuda_*.cpp in a program built without CUDA.
#include "core/cuda_device.h"

namespace sherd {
namespace {

[[noreturn]] void refuse() {
  throw UsageError("{}; set run.device: cpu", cuda_problem(0, 0, 0));
}

}  // namespace

CudaSystem cuda_system() {
  CudaSystem system;
  system.problem = cuda_problem(0, 0, 0);
  return system;
}

void use_cuda_device(int) {
  refuse();
}
std::unique_ptr<CudaStream> make_cuda_stream(StreamOptions, CudaStreamOptions) {
  refuse();
}
std::int64_t cuda_bytes_in_use(int) {
  refuse();
}
std::int64_t cuda_bytes_free(int) {
  refuse();
}
std::unique_ptr<ArenaMemory> cuda_arena_memory(std::int64_t) {
  refuse();
}
std::unique_ptr<ArenaMemory> pinned_arena_memory(std::int64_t) {
  refuse();
}
std::shared_ptr<void> pinned_memory(std::int64_t) {
  refuse();
}

}  // namespace sherd
