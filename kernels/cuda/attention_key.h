/// Describes a cuDNN attention computation, without cuDNN's headers: tests replace the
/// implementation.
#pragma once

#include <string>
#include <tuple>
#include <unordered_map>

#include "kernels/attention.h"
#include "kernels/device_common/attention_views.h"

namespace sherd::kernels::cuda {

/// The graph's tensors. With dropout also seed and offset, 64-bit numbers.
enum AttentionUid : std::int64_t { kQ, kK, kV, kOut, kLse, kDout, kDq, kDk, kDv, kSeed, kOffset };

struct AttentionGraphKey {
  AttentionShape shape;
  DType dtype = DType::kBF16;
  bool backward = false, deterministic = true;
  float dropout = 0.0f;
  std::int64_t scratch_bytes = 0;
  bool keys_apart = false;  ///< for a block: keys and values have separate rows

  device_common::AttentionViews views() const { return {shape, keys_apart}; }
  /// A block's position doesn't matter, only whether its keys are at its queries' own positions.
  auto tied() const {
    return std::make_tuple(shape.sequences, shape.num_keys(), shape.query_heads, shape.kv_heads,
                           shape.head_width, views().v.width, shape.scale, dtype, backward,
                           deterministic, dropout, scratch_bytes, keys_apart, shape.block.rows,
                           views().causal);
  }
  bool operator<(const AttentionGraphKey& other) const { return tied() < other.tied(); }

  std::string text() const;  ///< attention_graph.cpp
};

using AttentionPointers = std::unordered_map<std::int64_t, void*>;

/// Enqueues the graph of `key`; scratch and determinism of the key are set here. `workspace` begins
/// with the two words of the dropout and continues with cuDNN's own scratch.
void execute_attention(Stream& stream, AttentionGraphKey key, const Dropout& dropout,
                       AttentionPointers pointers, const Tensor& workspace);

}  // namespace sherd::kernels::cuda
