/// How sequences are cut over context ranks. Each rank has consecutive positions of every sequence
/// (in a ring, two runs of them) and whole matrices.
///
/// Everything except attention works on each position separately. For attention there are three
/// methods:
///
///   ulysses      an all-to-all before and after attention (Jacobs et al., arXiv:2309.14509): each
///                rank gives away its positions for most heads, and receives all positions for its
///                own heads. So attention is computed as on one rank, bit for bit, for a part of
///                the heads. There must be enough heads.
///                [B, S / C, heads]   -- all_to_all ->   [B, S, heads / C]   query, key, value;
///                and back the output
///   all_gather   each rank has the keys and values of all positions while it computes its own
///                queries (Llama Team, arXiv:2407.21783, section 3.3.2). Results per query are
///                bit-identical to one rank. The gradients of keys and values are sums over ranks,
///                in f32 and in rank order before they are rounded. The last positions see the most
///                keys, so the last rank computes longest.
///                [B, S / C, keys and values]   -- all_gather ->   [B, S, keys and values]
///   ring         each rank computes its own queries against the keys and values of one rank after
///                the other, which are passed around meanwhile (engine/model/attention/ring.h). A
///                rank's part has two halves, one from either end of the sequence, so that all
///                ranks see equally many keys. Results are merged in f32, so losses differ from
///                those of one rank in their last digits.
///                [B, 2, S / 2 C, keys and values]   -- to the next rank, C - 1 times ->
///
/// With canonical sums (engine/model/cut/canonical_sums.cpp), sums over tokens, including sums over
/// queries, are trees over eight groups of positions, and ranks have whole groups.
///
/// Positions, dropout's addresses and targets are those of the whole sequence.
///
/// Errors   UsageError with the nearest degree or method that works, if the sequence, or for
///          ulysses a rank's heads, can't be divided so, or if sums are to be canonical in a ring.
#pragma once

#include "engine/model/shape.h"

namespace sherd::model {

/// The shape that context rank `rank` of `degree` computes of `whole`, which may be a tensor rank's
/// part.
ModelShape context_part(const ModelShape& whole, int degree, int rank);

/// Whether context ranks exchange what routers have counted of each sequence, for losses of balance.
bool counts_sequences_together(const ModelShape& part);

}  // namespace sherd::model
