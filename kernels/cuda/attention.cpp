// Causal attention through cuDNN (attention_graph.h), of blocks too (attention_blocks.h); what it
// refuses goes to our own kernels (attention_tiles.h).
//
// Scratch: the two words of the dropout, then cuDNN's own.
#include "kernels/attention.h"

#include "core/cuda_device.h"
#include "kernels/cuda/attention_blocks.h"
#include "kernels/cuda/attention_tiles.h"
#include "kernels/cuda/cudnn_library.h"
#include "kernels/cuda/forms.h"
#include "kernels/device_common/attention.h"

namespace sherd::kernels::cuda {
namespace {

const AttentionGraph& planned(CudnnLibrary& library, const AttentionGraphKey& key) {
  std::unique_ptr<AttentionGraph>& graph = library.attention[key];
  if (!graph) graph = build_attention_graph(key, library.handle.get());
  return *graph;
}

// Keys and values begin inside a row of qkv: their places are multiples of 16 bytes if its own is.
void check_alignment(const AttentionPointers& pointers) {
  for (const auto& [uid, pointer] : pointers) {
    SHERD_CHECK(reinterpret_cast<std::uintptr_t>(pointer) % 16 == 0, "attention: tensor {} at {}",
                uid, pointer);
  }
}

template <class Args>
bool is_ours(const Args& args) {
  return device_common::attention_form(args.shape, args.qkv.dtype,
                                       static_cast<bool>(args.documents)) ==
         device_common::AttentionForm::kOwn;
}

void* at(const ConstTensor& tensor, std::int64_t element) {
  const auto offset = element * static_cast<std::int64_t>(size_of(tensor.dtype));
  return static_cast<char*>(const_cast<void*>(tensor.data)) + offset;
}

}  // namespace

void execute_attention(Stream& stream, AttentionGraphKey key, const Dropout& dropout,
                       AttentionPointers pointers, const Tensor& workspace) {
  check_alignment(pointers);
  CudaStream& cuda = cuda_stream(stream);
  key.deterministic = cuda.cuda().deterministic;
  key.dropout = dropout.active() ? dropout.probability : 0.0f;
  key.scratch_bytes = device_common::cudnn_attention_bytes(key.shape, key.deterministic);
  const std::int64_t needed = device_common::kAttentionSeedBytes + key.scratch_bytes;
  SHERD_CHECK(workspace.bytes() >= needed, "attention: a workspace of {} bytes, {} needed",
              workspace.bytes(), needed);
  auto* seed = static_cast<std::int64_t*>(workspace.data);
  if (dropout.active()) {
    set_pair(stream, seed, device_common::cudnn_dropout_seed(key.shape, dropout), 0);
    pointers[kSeed] = seed;
    pointers[kOffset] = seed + 1;
  }
  CudnnLibrary& library = cudnn_library(cuda);
  void* scratch = static_cast<char*>(workspace.data) + device_common::kAttentionSeedBytes;
  planned(library, key).execute(library.handle.get(), pointers, scratch);
}

void attention_forward(Stream& stream, const AttentionForward& args) {
  if (is_ours(args)) return attention_tiles_forward(stream, args);
  if (args.shape.block) return attention_block_forward(stream, args);
  const device_common::AttentionLayout layout(args.shape);
  execute_attention(stream, {args.shape, args.qkv.dtype, false}, args.dropout,
                    {{kQ, at(args.qkv, 0)},
                     {kK, at(args.qkv, layout.key(0, 0))},
                     {kV, at(args.qkv, layout.value(0, 0))},
                     {kOut, args.out.data},
                     {kLse, args.lse.data}},
                    args.workspace);
  if (args.sinks) join_attention_sinks(stream, {args.shape, args.sinks, args.out, args.lse});
}

void attention_backward(Stream& stream, const AttentionBackward& args) {
  if (is_ours(args)) return attention_tiles_backward(stream, args);
  if (args.shape.block) return attention_block_backward(stream, args);
  const device_common::AttentionLayout layout(args.shape);
  const std::int64_t keys = layout.key(0, 0), values = layout.value(0, 0);
  execute_attention(stream, {args.shape, args.qkv.dtype, true}, args.dropout,
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
