#include "kernels/cuda/attention_blocks.h"

#include "kernels/cuda/attention_key.h"

namespace sherd::kernels::cuda {
namespace {

using device_common::AttentionLayout;
using device_common::BlockScratch;

void* at(const ConstTensor& tensor, std::int64_t element) {
  const auto offset = element * static_cast<std::int64_t>(size_of(tensor.dtype));
  return static_cast<char*>(const_cast<void*>(tensor.data)) + offset;
}

// The tensors that both directions read, and this block's part of the workspace.
struct Block {
  AttentionGraphKey key;
  AttentionPointers pointers;
  Tensor lse, rows;

  Block(Stream& stream, const auto& args, bool backward)
      : key{.shape = args.shape,
            .dtype = args.qkv.dtype,
            .backward = backward,
            .keys_apart = static_cast<bool>(args.keys_values)} {
    const AttentionShape& shape = args.shape;
    const std::int64_t tokens = shape.sequences * shape.block.keys;
    const BlockScratch scratch(shape, compute_device(stream).deterministic);
    SHERD_CHECK(args.workspace.bytes() >= scratch.bytes,
                "attention: a workspace of {} bytes, {} needed", args.workspace.bytes(),
                scratch.bytes);
    auto* workspace = static_cast<char*>(args.workspace.data);
    lse = {workspace + scratch.lse, DType::kF32, tokens * shape.query_heads};
    rows = {workspace + scratch.rows, key.dtype, tokens * shape.packed_width()};
    const AttentionLayout layout(shape, key.keys_apart);
    const ConstTensor keys = key.keys_apart ? args.keys_values : args.qkv;
    pointers = {{kQ, at(args.qkv, layout.query(0, 0))},
                {kK, at(keys, layout.key(0, 0))},
                {kV, at(keys, layout.value(0, 0))},
                {kLse, lse.data}};
  }
};

}  // namespace

void attention_block_forward(Stream& stream, const AttentionForward& args) {
  Block block(stream, args, false);
  const std::int64_t width = args.shape.query_heads * args.shape.head_width;
  const Tensor out = block.rows.part(0, args.shape.sequences * args.shape.queries * width);
  block.pointers[kOut] = out.data;
  execute_attention(stream, block.key, args.dropout, block.pointers, args.workspace);
  merge_block(stream, args, out, block.lse);
}

void attention_block_backward(Stream& stream, const AttentionBackward& args) {
  Block block(stream, args, true);
  const AttentionShape& shape = args.shape;
  const std::int64_t H = shape.query_heads, G = shape.kv_heads, K = shape.head_width;
  const AttentionLayout layout(shape, block.key.keys_apart);
  take_block_lse(stream, args, block.lse);
  block.pointers[kOut] = at(args.out, layout.out(0, 0));
  block.pointers[kDout] = at(args.dout, layout.out(0, 0));
  block.pointers[kDq] = block.rows.data;
  block.pointers[kDk] = at(block.rows, H * K);
  block.pointers[kDv] = at(block.rows, (H + G) * K);
  execute_attention(stream, block.key, args.dropout, block.pointers, args.workspace);
  add_block_gradients(stream, args, block.rows);
}

}  // namespace sherd::kernels::cuda
