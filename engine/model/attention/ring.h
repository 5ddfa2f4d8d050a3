/// Ring attention of context ranks (Liu et al., arXiv:2310.01889; sequence_cut.h): keys and values go from rank to
/// rank, and each rank computes its queries against those that it has just received, while they go on to the next.
///
///   half      a sequence is 2 C of them; rank r has r and 2 C - 1 - r, so that all ranks see as many keys
///   step j    rank r has the keys of rank s = r - j (mod C), for j = 0, 1, ..., C - 1:
///               s = r   each of its two halves against itself, and the second against the first
///               s < r   both halves against the first of s
///               s > r   the second half against both of s
///   backward  gradients of keys and values go the same way, one step behind, each rank adding its own in f32; behind
///             the last step they are at home
///
/// Order    a query's results over other keys are merged in the order of the steps, and the gradients of rank s's keys
///          are added in the order s + 1, s + 2, ..., s: the same for a given C, whatever else is cut.
/// Overlap  a transfer is posted before the attention under which it is made. The backward keeps the second half
///          against the first of its own keys for the last transfer.
#pragma once

#include <vector>

#include "engine/model/shape.h"

namespace sherd::model {

/// One of a rank's halves, as queries, and one of a rank's, as keys.
struct HalfPair {
  int query = 0, key = 0;

  bool operator==(const HalfPair&) const = default;
};

/// What rank `shape.context.rank` computes with the keys of rank `source`, of a layer with this window (0: none). Of its
/// own keys, each half against itself comes first.
std::vector<HalfPair> ring_pairs(const ModelShape& shape, std::int64_t window, int source);

/// The attention of one of these.
kernels::AttentionShape ring_attention(const ModelShape& shape, std::int64_t block, int source,
                                       const HalfPair& pair);

}  // namespace sherd::model
