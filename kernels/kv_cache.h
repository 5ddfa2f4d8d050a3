/// The keys and values of one layer and one sequence, kept while text is generated, so that each
/// new token costs a pass over itself only, not over all earlier ones.
///
/// Keys and values are stored after rotation, in f32 whatever the compute type. A CPU stores them
/// in the panels that attention reads, so nothing is packed twice.
///
/// Shapes    cache f32 [kv_cache_numel]; qkv [T, (H + 2 G) * K] of the new tokens, out [T, H * K].
/// Bits      the same however tokens are divided into calls; on a CPU, bit-identical to
///           attention_forward (kernels/attention.h) over all of them in one pass.
/// Errors    more positions than the capacity are a bug in Sherd (SHERD_CHECK). UsageError on a GPU
///           for heads wider than 256.
/// Workspace `cached_attention_workspace_bytes`.
#pragma once

#include "kernels/attention.h"

namespace sherd::kernels {

struct CachedAttention {
  AttentionShape shape;  ///< one sequence; `positions` is the capacity, of which windows are a part
  std::int64_t first = 0;  ///< positions whose keys and values are in the cache
  std::int64_t count = 0;  ///< T: new positions, which this call adds and attends from
  ConstTensor qkv;
  Tensor cache;
  Tensor out;
  Tensor workspace;
  ConstTensor sinks{};  ///< kernels/attention.h
};
void cached_attention(Stream& stream, const CachedAttention& args);

std::int64_t kv_cache_numel(const AttentionShape& shape);
std::int64_t cached_attention_workspace_bytes(const AttentionShape& shape,
                                              const ComputeDevice& device);

}  // namespace sherd::kernels
