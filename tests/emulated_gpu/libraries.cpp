// What of kernels/cuda calls cuDNN, on the emulated GPU: attention is our own kernels', but of blocks that cuDNN computes
// (cudnn.cpp). Matmuls are in linear.cpp, or the real sources over a fake of cuBLASLt (tests/fake_cuda/blas.h).
#include "kernels/libraries.h"
#include "core/cuda_device.h"
#include "cuda_runtime_api.h"
#include "kernels/cuda/attention_blocks.h"
#include "kernels/cuda/attention_tiles.h"
#include "kernels/cuda/forms.h"
#include "kernels/device_common/attention.h"
#include "tests/emulated_gpu/libraries.h"

std::vector<sherd::LoadedLibrary> emulated::libraries_found;

namespace sherd::kernels {
namespace cuda {
namespace {

bool is_cudnns_block(const auto& args) {
  return args.shape.block && device_common::attention_form(args.shape, args.qkv.dtype,
                                                           static_cast<bool>(args.documents)) ==
                                 device_common::AttentionForm::kCudnn;
}

}  // namespace

void attention_forward(Stream& stream, const AttentionForward& args) {
  if (is_cudnns_block(args)) return attention_block_forward(stream, args);
  attention_tiles_forward(stream, args);
}
void attention_backward(Stream& stream, const AttentionBackward& args) {
  if (is_cudnns_block(args)) return attention_block_backward(stream, args);
  attention_tiles_backward(stream, args);
}

}  // namespace cuda

std::vector<LoadedLibrary> loaded_libraries() {
  return emulated::libraries_found;
}

}  // namespace sherd::kernels
