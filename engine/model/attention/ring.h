/// Ring attention of context ranks (Liu et al., arXiv:2310.01889; sequence_cut.h): keys and values
/// are passed from rank to rank. Each rank computes its queries against those it has just received,
/// while they are passed on to the next.
///
///   half      a sequence has 2 C halves; rank r has r and 2 C - 1 - r, so all ranks see equally
///             many keys
///   step j    rank r has the keys of rank s = r - j (mod C), for j = 0, 1, ..., C - 1:
///               s = r   each of its two halves against itself, and the second against the first
///               s < r   both halves against the first of s
///               s > r   the second half against both of s
///   backward  gradients of keys and values are passed the same way, one step later, and each rank
///             adds its own in f32; after the last step they are on their own rank
///
/// Order    a query's results over other keys are merged in the order of the steps, and the
///          gradients of rank s's keys are added in the order s + 1, s + 2, ..., s: the same for a
///          given C, however the model is cut otherwise.
/// Overlap  a transfer is posted before the attention that it overlaps. The backward computes the
///          second half against the first half of its own keys during the last transfer.
#pragma once

#include <vector>

#include "engine/model/shape.h"

namespace sherd::model {

/// A half that provides queries, and a half that provides keys.
struct HalfPair {
  int query = 0, key = 0;

  bool operator==(const HalfPair&) const = default;
};

/// What rank `shape.context.rank` computes with the keys of rank `source`, in a layer with this
/// window (0: none). For its own keys, each half against itself comes first.
std::vector<HalfPair> ring_pairs(const ModelShape& shape, std::int64_t window, int source);

/// The attention of one such pair.
kernels::AttentionShape ring_attention(const ModelShape& shape, std::int64_t block, int source,
                                       const HalfPair& pair);

}  // namespace sherd::model
