// Causal attention through cuDNN (attention_graph.h); what it refuses goes to our own kernels
// (attention_tiles.h). Graphs are kept for a thread and a device.
//
// Scratch: the two words of the dropout, then cuDNN's own.
#include "kernels/attention.h"

#include <map>

#include "core/cuda_device.h"
#include "kernels/body/attention.h"
#include "kernels/cuda/attention_graph.h"
#include "kernels/cuda/attention_tiles.h"
#include "kernels/cuda/forms.h"

namespace sherd::kernels::cuda {
namespace {

namespace graph = cudnn_frontend::graph;

void check_cudnn(cudnnStatus_t status, const char* call) {
  if (status != CUDNN_STATUS_SUCCESS) {
    throw TrainingError("{} failed: {}", call, cudnnGetErrorString(status));
  }
}

// One per thread and device: a handle carries the stream of the next call.
cudnnHandle_t handle_of(const CudaStream& stream) {
  thread_local std::map<int, cudnnHandle_t> handles;
  cudnnHandle_t& handle = handles[stream.cuda().device];
  if (!handle) check_cudnn(cudnnCreate(&handle), "cudnnCreate");
  check_cudnn(cudnnSetStream(handle, stream.handle()), "cudnnSetStream");
  return handle;
}

const graph::Graph& planned(const AttentionGraphKey& key, int device, cudnnHandle_t handle) {
  thread_local std::map<std::pair<int, AttentionGraphKey>, std::unique_ptr<graph::Graph>> graphs;
  std::unique_ptr<graph::Graph>& graph = graphs[{device, key}];
  if (!graph) graph = build_attention_graph(key, handle);
  return *graph;
}

using Pointers = std::unordered_map<std::int64_t, void*>;

// Keys and values begin inside a row of qkv: their places are multiples of 16 bytes if its own is.
void check_alignment(const Pointers& pointers) {
  for (const auto& [uid, pointer] : pointers) {
    CHECK(reinterpret_cast<std::uintptr_t>(pointer) % 16 == 0, "attention: tensor {} at {}", uid,
          pointer);
  }
}

void execute(Stream& stream, AttentionGraphKey key, const Dropout& dropout, Pointers pointers,
             const Tensor& workspace) {
  check_alignment(pointers);
  CudaStream& cuda = cuda_stream(stream);
  key.deterministic = cuda.cuda().deterministic;
  key.dropout = dropout.active() ? dropout.probability : 0.0f;
  const std::int64_t needed =
      body::attention_workspace_bytes(key.shape, key.dtype, key.deterministic);
  CHECK(workspace.bytes() >= needed, "attention: a workspace of {} bytes, {} needed",
        workspace.bytes(), needed);
  key.scratch_bytes = needed - body::kAttentionSeedBytes;
  auto* seed = static_cast<std::int64_t*>(workspace.data);
  if (dropout.active()) {
    set_pair(stream, seed, body::cudnn_dropout_seed(dropout), 0);
    pointers[kSeed] = seed;
    pointers[kOffset] = seed + 1;
  }
  const cudnnHandle_t handle = handle_of(cuda);
  const graph::Graph& graph = planned(key, cuda.cuda().device, handle);
  void* scratch = static_cast<char*>(workspace.data) + body::kAttentionSeedBytes;
  const auto status = graph.execute(handle, pointers, scratch);
  if (status.is_bad()) {
    throw TrainingError("{} failed: {}", key.text(), cudnn_frontend::error_t(status).get_message());
  }
}

bool is_ours(const AttentionShape& shape, DType dtype) {
  return body::attention_form(shape, dtype) == body::AttentionForm::kOwn;
}

void* at(const ConstTensor& tensor, std::int64_t element) {
  const auto offset = element * static_cast<std::int64_t>(size_of(tensor.dtype));
  return static_cast<char*>(const_cast<void*>(tensor.data)) + offset;
}

}  // namespace

void attention_forward(Stream& stream, const AttentionForward& args) {
  const DType dtype = args.qkv.dtype;
  if (is_ours(args.shape, dtype)) return attention_tiles_forward(stream, args);
  const body::AttentionLayout layout(args.shape);
  execute(stream, {args.shape, dtype, false}, args.dropout,
          {{kQ, at(args.qkv, 0)},
           {kK, at(args.qkv, layout.key(0, 0))},
           {kV, at(args.qkv, layout.value(0, 0))},
           {kOut, args.out.data},
           {kLse, args.lse.data}},
          args.workspace);
}

void attention_backward(Stream& stream, const AttentionBackward& args) {
  const DType dtype = args.qkv.dtype;
  if (is_ours(args.shape, dtype)) return attention_tiles_backward(stream, args);
  const body::AttentionLayout layout(args.shape);
  const std::int64_t keys = layout.key(0, 0), values = layout.value(0, 0);
  execute(stream, {args.shape, dtype, true}, args.dropout,
          {{kQ, at(args.qkv, 0)},
           {kK, at(args.qkv, keys)},
           {kV, at(args.qkv, values)},
           {kOut, at(args.out, 0)},
           {kLse, at(args.lse, 0)},
           {kDout, at(args.dout, 0)},
           {kDq, at(args.dqkv, 0)},
           {kDk, at(args.dqkv, keys)},
           {kDv, at(args.dqkv, values)}},
          args.workspace);
}

}  // namespace sherd::kernels::cuda
