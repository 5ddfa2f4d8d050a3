// The emulated GPU's kernels as work of the fake machine's streams.
#include "tests/emulated_gpu/cuda_runtime_api.h"
#include "tests/fake_cuda/machine.h"

namespace emulated {

void enqueue(cudaStream_t stream, std::function<void()> work) {
  fake_cuda::launch(stream, {"kernel", std::move(work)});
}

}  // namespace emulated
