// kernels/cuda/attention.cpp on the emulated GPU where cuDNN's header isn't there to compile it against: attention is our
// own kernels', but of blocks, which are computed as cuDNN's (tests/fake_cuda/attention.h).
#include "kernels/attention.h"

#include "core/cuda_device.h"
#include "cuda_runtime_api.h"
#include "kernels/cuda/attention_blocks.h"
#include "kernels/cuda/attention_tiles.h"
#include "kernels/cuda/forms.h"
#include "kernels/device_common/attention.h"
#include "tests/fake_cuda/attention.h"

namespace sherd::kernels::cuda {
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

void execute_attention(Stream& stream, AttentionGraphKey key, const Dropout& dropout,
                       AttentionPointers pointers, const Tensor& workspace) {
  key.deterministic = cuda_stream(stream).cuda().deterministic;
  key.dropout = dropout.active() ? dropout.probability : 0.0f;
  key.scratch_bytes = device_common::cudnn_attention_bytes(key.shape, key.deterministic);
  SHERD_CHECK(workspace.bytes() >= device_common::kAttentionSeedBytes + key.scratch_bytes,
              "attention: a workspace of {} bytes", workspace.bytes());
  auto* seed = static_cast<std::int64_t*>(workspace.data);
  if (dropout.active()) {
    seed[0] = device_common::cudnn_dropout_seed(key.shape, dropout);
    seed[1] = 0;
    pointers[kSeed] = seed;
    pointers[kOffset] = seed + 1;
  }
  attention_of(key, pointers,
               static_cast<char*>(workspace.data) + device_common::kAttentionSeedBytes)
      .run();
}

}  // namespace sherd::kernels::cuda
