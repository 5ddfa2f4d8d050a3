/// The CPU form of kernels/kv_cache.h.
///
/// Per head: the panels of keys, [K] deep, then those of values, [positions] deep
/// (attention_strip.h).
#pragma once

#include "core/thread_team.h"
#include "kernels/kv_cache.h"

namespace sherd::kernels::cpu {

void cached_attention(ThreadTeam& team, const CachedAttention& args);
std::int64_t kv_cache_floats(const AttentionShape& shape);
std::int64_t cached_attention_scratch_floats(const AttentionShape& shape);  ///< per thread

}  // namespace sherd::kernels::cpu
