/// Attention whole, and in blocks of keys that are merged: on a CPU (attention_blocks_test.cpp) and on a GPU
/// (cuda_attention_blocks_test.cpp).
#pragma once

#include <gtest/gtest.h>

#include <cmath>

#include "kernels/attention.h"
#include "kernels/columns.h"
#include "kernels/pointwise.h"
#include "tests/support/values/tensors.h"

namespace sherd::kernels {

using test::OwnedTensor;
using test::Values;

struct AttentionInputs {
  OwnedTensor qkv, dout;
  Dropout dropout;
  Documents documents;
};

inline constexpr std::size_t kBlocks = 5;
inline constexpr std::size_t kPlaces[kBlocks] = {3, 0, 4, 1,
                                                 2};  ///< the place of block i of a sequence

// Of [outer, S, inner], the blocks of S in their places; or back.
inline OwnedTensor moved(const OwnedTensor& from, std::int64_t outer, std::int64_t inner,
                         bool back) {
  const Values values = from.values();
  Values to(values.size());
  const std::int64_t sequence = std::ssize(values) / outer;
  const std::int64_t block = sequence / inner / static_cast<std::int64_t>(kBlocks) * inner;
  for (std::int64_t o = 0; o < outer; ++o) {
    for (std::size_t i = 0; i < kBlocks; ++i) {
      const std::int64_t here = o * sequence + static_cast<std::int64_t>(i) * block;
      const std::int64_t there = o * sequence + static_cast<std::int64_t>(kPlaces[i]) * block;
      const auto begin = values.begin() + (back ? there : here);
      std::copy(begin, begin + block, to.begin() + (back ? here : there));
    }
  }
  return {from.tensor().dtype, to};
}

// out, lse, dQ, and the gradients of keys and values, f32 but for the first.
struct AttentionResults {
  OwnedTensor out, lse, dq, dkv;
};

inline AttentionResults whole(Stream& stream, const AttentionShape& shape,
                              const AttentionInputs& inputs) {
  const DType dtype = inputs.qkv.tensor().dtype;
  const std::int64_t T = shape.tokens(), width = shape.query_heads * shape.head_width;
  OwnedTensor dqkv(dtype, T * shape.packed_width()), out(dtype, T * width), dq(dtype, T * width);
  OwnedTensor lse(DType::kF32, T * shape.query_heads);
  OwnedTensor dkv(DType::kF32, T * 2 * shape.kv_heads * shape.head_width);
  OwnedTensor workspace =
      test::workspace(attention_workspace_bytes(shape, dtype, compute_device(stream)));
  attention_forward(stream, {.shape = shape,
                             .qkv = inputs.qkv,
                             .dropout = inputs.dropout,
                             .out = out,
                             .lse = lse,
                             .workspace = workspace,
                             .documents = inputs.documents});
  attention_backward(stream, {.shape = shape,
                              .qkv = inputs.qkv,
                              .out = out,
                              .lse = lse,
                              .dout = inputs.dout,
                              .dropout = inputs.dropout,
                              .dqkv = dqkv,
                              .workspace = workspace,
                              .documents = inputs.documents,
                              .dkv = dkv});
  move_columns(stream, {T, shape.packed_width(), 0, width}, dqkv, {T, width, 0, width}, dq);
  return {out, lse, dq, dkv};
}

// A block of the queries and one of the keys, at their positions.
inline AttentionShape block_of(const AttentionShape& whole, std::size_t query, std::size_t key) {
  const std::int64_t size = whole.positions / static_cast<std::int64_t>(kBlocks);
  const auto at = [size](std::size_t i) { return static_cast<std::int64_t>(i) * size; };
  AttentionShape shape = whole;
  shape.first_query = at(query);
  shape.queries = size;
  shape.block = {.first_key = at(key),
                 .keys = size,
                 .rows = whole.positions,
                 .query_row = at(kPlaces[query]),
                 .key_row = at(kPlaces[key])};
  return shape;
}

// Keys of the queries' own block first, then the others in an order of a ring: latest first.
template <class Visit>
void for_each_pair(const Visit& visit) {
  for (std::size_t query = 0; query < kBlocks; ++query) {
    for (std::size_t key = query + 1; key-- > 0;) visit(query, key);
  }
}

/// Where attention in blocks reads and writes: rows of qkv, dout and results in the blocks' places.
struct BlockTensors {
  ConstTensor qkv, dout;
  ConstTensor keys_values;  ///< empty: they are in qkv
  Tensor out;               ///< f32, and rounded
  Tensor out_rounded;
  Tensor lse, dq, dkv;
  Tensor workspace;
};

/// Both directions, block by block; earlier values of the results aren't read.
inline void attend_in_blocks(Stream& stream, const AttentionShape& shape,
                             const AttentionInputs& inputs, const BlockTensors& tensors) {
  fill_constant(stream, tensors.out, NAN);
  fill_constant(stream, tensors.lse, NAN);
  for_each_pair([&](std::size_t query, std::size_t key) {
    attention_forward(stream, {.shape = block_of(shape, query, key),
                               .qkv = tensors.qkv,
                               .dropout = inputs.dropout,
                               .out = tensors.out,
                               .lse = tensors.lse,
                               .workspace = tensors.workspace,
                               .documents = inputs.documents,
                               .keys_values = tensors.keys_values,
                               .merge = key != query});
  });
  cast(stream, tensors.out, tensors.out_rounded);
  fill_zero(stream, tensors.dq);
  fill_zero(stream, tensors.dkv);
  for_each_pair([&](std::size_t query, std::size_t key) {
    attention_backward(stream, {.shape = block_of(shape, query, key),
                                .qkv = tensors.qkv,
                                .out = tensors.out_rounded,
                                .lse = tensors.lse,
                                .dout = tensors.dout,
                                .dropout = inputs.dropout,
                                .dqkv = {},
                                .workspace = tensors.workspace,
                                .documents = inputs.documents,
                                .dkv = tensors.dkv,
                                .keys_values = tensors.keys_values,
                                .dq = tensors.dq});
  });
}

/// Of packed rows, those of keys and values alone.
inline OwnedTensor keys_and_values(Stream& stream, const AttentionShape& shape,
                                   const OwnedTensor& qkv) {
  const std::int64_t T = shape.tokens(), width = shape.query_heads * shape.head_width;
  const std::int64_t kv_width = 2 * shape.kv_heads * shape.head_width;
  OwnedTensor keys_values(qkv.tensor().dtype, T * kv_width);
  move_columns(stream, {T, shape.packed_width(), width, kv_width}, qkv, {T, kv_width, 0, kv_width},
               keys_values);
  stream.synchronize();
  return keys_values;
}

}  // namespace sherd::kernels
