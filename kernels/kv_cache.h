/// The keys and values of one layer and one sequence, kept while text is generated, so that each new
/// token costs a pass over itself and not over all before it.
///
/// Keys and values are written as they come out of the rotation. They are kept in f32 whatever the compute
/// type, on a CPU in the panels in which attention reads them: nothing is packed twice.
///
/// Shapes    cache f32 [kv_cache_numel]; qkv [T, (H + 2 G) * K] of the new tokens, out [T, H * K].
/// Bits      the same however tokens are cut into calls; on a CPU what attention_forward (kernels/attention.h)
///           gives for them in one pass.
/// Errors    more positions than the capacity: our bug (SHERD_CHECK). UsageError on a GPU for heads above 256.
/// Workspace `cached_attention_workspace_bytes`.
#pragma once

#include "kernels/attention.h"

namespace sherd::kernels {

struct CachedAttention {
  AttentionShape shape;  ///< one sequence; `positions` is the capacity, of which windows are a part
  std::int64_t first = 0;  ///< positions whose keys and values are in the cache
  std::int64_t count = 0;  ///< T: new ones, that these calls add and attend from
  ConstTensor qkv;
  Tensor cache;
  Tensor out;
  Tensor workspace;
};
void cached_attention(Stream& stream, const CachedAttention& args);

std::int64_t kv_cache_numel(const AttentionShape& shape);
std::int64_t cached_attention_workspace_bytes(const AttentionShape& shape,
                                              const ComputeDevice& device);

}  // namespace sherd::kernels
