// What of kernels/cuda calls NVIDIA's libraries, on the emulated GPU: matmuls are the CPU's, attention is
// our own kernels', but of blocks that cuDNN computes (cudnn.cpp).
#include "kernels/libraries.h"
#include "core/cuda_device.h"
#include "cuda_runtime_api.h"
#include "kernels/cpu/linear.h"
#include "kernels/cuda/attention_blocks.h"
#include "kernels/cuda/attention_tiles.h"
#include "kernels/cuda/column_sums.h"
#include "kernels/cuda/forms.h"
#include "kernels/device_common/attention.h"

namespace sherd::kernels {
namespace cuda {
namespace {

// The CPU's scratch for 16-bit products is larger than cuBLASLt's at some shapes.
Tensor host_scratch(const LinearShape& shape, DType dtype) {
  thread_local std::vector<float> scratch;
  scratch.resize(
      static_cast<std::size_t>(cpu::linear_workspace_bytes(shape, dtype, DType::kBF16) / 4 + 1));
  return {scratch.data(), DType::kF32, static_cast<std::int64_t>(scratch.size())};
}

ActivationShape gelu_of(std::int64_t tokens, std::int64_t width) {
  return {ActivationKind::kGelu, tokens, width};
}

// `matmul` in its stream's order, with scratch of the thread that computes it.
template <class Args, class Compute>
void enqueue(Stream& stream, const Args& matmul, DType dtype, Compute compute) {
  emulated::enqueue(cuda_stream(stream).handle(), [&stream, matmul, dtype, compute] {
    Args args = matmul;
    args.workspace = host_scratch(args.shape, dtype);
    compute(stream.team(), args);
  });
}

bool is_cudnns_block(const auto& args) {
  return args.shape.block && device_common::attention_form(args.shape, args.qkv.dtype,
                                                           static_cast<bool>(args.documents)) ==
                                 device_common::AttentionForm::kCudnn;
}

}  // namespace

void linear_forward(Stream& stream, const LinearForward& args) {
  LinearForward matmul = args;
  if (args.gelu_input) matmul.y = args.gelu_input;
  enqueue(stream, matmul, args.x.dtype, cpu::linear_forward);
  if (!args.gelu_input) return;
  activation_forward(stream,
                     {gelu_of(args.shape.tokens, args.shape.outputs), args.gelu_input, args.y});
}

void linear_backward_input(Stream& stream, const LinearBackwardInput& args) {
  enqueue(stream, args, args.dy.dtype, cpu::linear_backward_input);
  if (!args.gelu_input) return;
  activation_backward(
      stream, {gelu_of(args.shape.tokens, args.shape.inputs), args.gelu_input, args.dx, args.dx});
}

void linear_backward_weight(Stream& stream, const LinearBackwardWeight& args) {
  LinearBackwardWeight matmul = args;
  matmul.dbias = {};
  enqueue(stream, matmul, args.dy.dtype, cpu::linear_backward_weight);
  if (args.dbias) {
    sum_columns(stream, args.dy, args.shape, args.dbias, args.add_to_output, args.workspace);
  }
}

double seconds_on_device(Stream&, int, const std::function<void()>&, const std::function<void()>&) {
  return 0.0;
}

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
  return {};
}

}  // namespace sherd::kernels
