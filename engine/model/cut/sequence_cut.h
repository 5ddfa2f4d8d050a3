/// How sequences are cut over context ranks: each has neighbouring positions of every sequence, or in a ring two runs of
/// them, and whole matrices.
///
/// Everything but attention works on each position alone. For attention there are three methods:
///
///   ulysses      the ranks change sides (Jacobs et al., arXiv:2309.14509): each gives away its positions of most
///                heads, and takes all positions of its own heads. So attention is computed as on one rank, bit for
///                bit, in a part of the heads, of which there must be enough.
///                [B, S / C, heads]   -- all_to_all ->   [B, S, heads / C]   query, key, value; and back the output
///   all_gather   each has the keys and values of all positions while it computes its own queries (Llama Team,
///                arXiv:2407.21783, section 3.3.2). What belongs to a query has the bits of one rank; the gradients of
///                keys and values are sums over ranks, in f32 and in rank order before they are rounded. The last
///                positions see the most keys, so the last rank computes longest.
///                [B, S / C, keys and values]   -- all_gather ->   [B, S, keys and values]
///   ring         each computes its own queries against the keys and values of one rank after the other, which go round
///                meanwhile (engine/model/attention/ring.h). A rank has two halves of its part, one from either end of the
///                sequence, so that all see as many keys. Results are merged in f32, so losses differ from those of one
///                rank in their last digits.
///                [B, 2, S / 2 C, keys and values]   -- to the next rank, C - 1 times ->
///
/// With canonical sums (engine/model/cut/canonical_sums.cpp) sums over tokens, of which those over queries are some, are
/// trees over eight groups of positions, and ranks have whole ones.
///
/// Positions, dropout's addresses and targets are those of the whole sequence.
///
/// Errors   UsageError with the nearest degree or method that works, where the sequence, or for ulysses a rank's heads,
///          can't be divided so, or sums in a ring are to be canonical.
#pragma once

#include "engine/model/shape.h"

namespace sherd::model {

/// The shape of what context rank `rank` of `degree` computes of `whole`, which may be a tensor rank's part.
ModelShape context_part(const ModelShape& whole, int degree, int rank);

}  // namespace sherd::model
