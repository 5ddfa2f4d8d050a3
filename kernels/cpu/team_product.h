/// A product of two whole f32 matrices by all threads of a team, both factors packed once:
///
///   c[i,j] = sum_k a[i,k] b[k,j]  (+ bias[j] or + c[i,j])     a [M, L], b [L, N], c [M, N]
///
/// After Goto & van de Geijn (2008) and Van Zee & van de Geijn (2015): a piece of b that the
/// threads share, small enough for the last cache, lies in panels of 16 columns; each thread keeps
/// a few rows of a piece of a in panels of 6 in its own second cache; the tiles of tile_product.h
/// do the rest. OpenBLAS on one thread's part of the output packs the shared factor once per
/// thread.
///
/// Bits       c[i,j] is a chain of fused multiply-adds over k for each piece of the depth, and the
///            pieces are added in order: they follow the depth alone. Neither the number of
///            threads nor the other sizes change anything.
/// Workspace  `team_product_floats`, at a multiple of 64 bytes.
/// Errors     none. Nothing may alias c.
#pragma once

#include <cstdint>

#include "core/thread_team.h"
#include "kernels/cpu/gemm.h"

namespace sherd::kernels::cpu {

struct TeamProduct {
  std::int64_t rows = 0, columns = 0, depth = 0;  ///< M, N, L
  GemmOperand a, b;
  float* c = nullptr;           ///< rows one after another
  const float* bias = nullptr;  ///< one per column; not together with `add`
  bool add = false;
};
void multiply(ThreadTeam& team, const TeamProduct& product, float* workspace);

std::int64_t team_product_floats(std::int64_t rows, std::int64_t columns, std::int64_t depth,
                                 int num_threads);

/// Whether these tiles, of AVX2's width, are the fastest that this processor has. Where it has
/// wider vectors OpenBLAS's kernels use them.
bool team_product_is_fastest();

}  // namespace sherd::kernels::cpu
