/// What cuDNN is asked to compute of attention, without cuDNN's headers: tests have another who computes it.
#pragma once

#include <string>
#include <tuple>
#include <unordered_map>

#include "kernels/attention.h"
#include "kernels/device_common/attention_views.h"

namespace sherd::kernels::cuda {

/// The graph's tensors. Seed and offset, 64-bit numbers, where there is dropout.
enum AttentionUid : std::int64_t { kQ, kK, kV, kOut, kLse, kDout, kDq, kDk, kDv, kSeed, kOffset };

struct AttentionGraphKey {
  AttentionShape shape;
  DType dtype = DType::kBF16;
  bool backward = false, deterministic = true;
  float dropout = 0.0f;
  std::int64_t scratch_bytes = 0;
  bool keys_apart = false;  ///< of a block: keys and values have separate rows

  device_common::AttentionViews views() const { return {shape, keys_apart}; }
  /// Where a block lies doesn't matter, but that its keys are its queries' own.
  auto tied() const {
    return std::make_tuple(shape.sequences, shape.num_keys(), shape.query_heads, shape.kv_heads,
                           shape.head_width, shape.scale, dtype, backward, deterministic, dropout,
                           scratch_bytes, keys_apart, shape.block.rows, views().causal);
  }
  bool operator<(const AttentionGraphKey& other) const { return tied() < other.tied(); }

  std::string text() const;  ///< attention_graph.cpp
};

using AttentionPointers = std::unordered_map<std::int64_t, void*>;

/// Enqueues the graph of `key`, whose scratch and determinism are found here. `workspace` begins with the two words of
/// the dropout and continues with cuDNN's own scratch.
void execute_attention(Stream& stream, AttentionGraphKey key, const Dropout& dropout,
                       AttentionPointers pointers, const Tensor& workspace);

}  // namespace sherd::kernels::cuda
