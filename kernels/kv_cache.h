/// The keys and values of one layer and one sequence, kept while text is generated, so that each new
/// token costs a pass over itself and not over all before it.
///
/// Keys and values are written as they come out of the rotation. They are kept in f32, in the panels
/// in which attention reads them, whatever the compute type: nothing is packed twice.
///
/// Shapes    cache f32 [kv_cache_numel]; qkv [T, (H + 2 G) * K] of the new tokens, out [T, H * K].
/// Bits      what attention_forward (kernels/attention.h) gives for the same tokens in one pass, however
///           they are cut into calls.
/// Errors    a GPU has no such kernel yet: our bug (CHECK), for whoever generates there passes over the
///           whole text for every token. More positions than the capacity: our bug.
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
