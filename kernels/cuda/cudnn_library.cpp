#include "kernels/cuda/cudnn_library.h"

#include "kernels/device_common/lease_pool.h"

namespace sherd::kernels::cuda {
namespace {

void check_cudnn(cudnnStatus_t status, const char* call) {
  if (status != CUDNN_STATUS_SUCCESS) {
    throw TrainingError("{} failed: {}", call, cudnnGetErrorString(status));
  }
}

}  // namespace

CudnnLibrary& cudnn_library(const CudaStream& stream) {
  auto& library = device_common::leased_by_thread<CudnnLibrary>(stream.cuda().device, [] {
    cudnnHandle_t handle = nullptr;
    check_cudnn(cudnnCreate(&handle), "cudnnCreate");
    auto made = std::make_unique<CudnnLibrary>();
    made->handle.reset(handle);
    return made;
  });
  check_cudnn(cudnnSetStream(library.handle.get(), stream.handle()), "cudnnSetStream");
  return library;
}

}  // namespace sherd::kernels::cuda
