/// How sequences are cut over context ranks: each has neighbouring positions of every sequence, and whole matrices.
///
/// Everything but attention works on each position alone. For attention the ranks change sides (Ulysses, Jacobs et
/// al., arXiv:2309.14509): each gives away its positions of most heads, and takes all positions of its own
/// heads. So attention is computed as on one rank, bit for bit, in a part of the heads.
///
///   [B, S / C, heads]   -- all_to_all ->   [B, S, heads / C]   query, key and value; and back the output
///
/// Positions, dropout's addresses and targets are those of the whole sequence.
///
/// Errors   UsageError with the nearest degree that works, where a rank's heads or the sequence can't be
///          divided so.
#pragma once

#include "engine/model/shape.h"

namespace sherd::model {

/// The shape of what context rank `rank` of `degree` computes of `whole`, which may be a tensor rank's part.
ModelShape context_part(const ModelShape& whole, int degree, int rank);

}  // namespace sherd::model
