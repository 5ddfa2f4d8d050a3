/// A product of two whole matrices by all threads of a team, both packed once:
///
///   c[i,j] = sum_k a[i,k] b[k,j]  (+ bias[j] or + c[i,j])     a [M, L], b [L, N], c [M, N]
///
/// After Goto & van de Geijn (2008) and Van Zee & van de Geijn (2015): a piece of b, shared by the
/// threads and small enough for the last-level cache, lies in panels of a tile's width. Each thread
/// keeps a few rows of a piece of a in panels on its stack. The tiles of tile.h do the rest.
///
/// Types      a, b and bias f32, bf16 or f16; c any of them. f16 is widened to f32.
/// Bits       c[i,j] depends only on its row, its column, the depth L and the types: not on the
///            other sizes, the layouts, the threads or the instruction set (except amx:
///            kernels/isa.h). The depth is cut into pieces (`matmul_depth_piece`). A piece is one
///            ascending chain of fused multiply-adds from zero; bf16 is processed in pairs, the odd
///            element first, with subnormals taken as zero. The pieces are added in order in f32.
///            If bias or c is f32, they are added to it; otherwise the sum starts with the first
///            piece, and c is added after the whole sum. A 16-bit c is rounded once.
/// Cuts of L  Pieces nest: if L is a multiple of 8 times their number, each half of the depth has
///            the pieces of the whole. So an f32 c of the first half, to which the second half is
///            then added, is bit-identical to the whole matmul.
/// Workspace  `matmul_workspace_bytes`, at a multiple of 64 bytes. It doesn't grow if M, N or L get
///            smaller, and is the same for every instruction set and number of threads, except that
///            a single thread, which packs nothing ahead, needs less.
/// Errors     a workspace that is too small is a bug in Sherd (SHERD_CHECK). Nothing may alias c.
#pragma once

#include <cstdint>
#include <span>

#include "core/tensor.h"
#include "core/thread_team.h"

namespace sherd::kernels::cpu {

/// A row-major matrix; `transposed` if memory holds its transpose.
struct MatmulOperand {
  const void* data = nullptr;
  std::int64_t stride = 0;  ///< elements from one row in memory to the next
  bool transposed = false;
  /// With a transposed b: the number of leading columns that are interleaved
  /// (kernels/interleaved.h).
  std::int64_t interleaved = 0;
  /// Where the lines in memory lie, if not one after another: line i is number lines[i]. Not of a
  /// transposed b.
  const std::int32_t* lines = nullptr;
};

struct Matmul {
  std::int64_t rows = 0, columns = 0, depth = 0;  ///< M, N, L
  DType dtype = DType::kF32;                      ///< of a, b and bias
  MatmulOperand a, b;
  Tensor c;                    ///< [M, N], rows one after another
  const void* bias = nullptr;  ///< one per column; not together with `add`
  bool add = false;
};
void matmul(ThreadTeam& team, const Matmul& matmul, const Tensor& workspace);

/// Matmuls of the same types, of any sizes, that don't depend on one another. Each is done by one
/// thread, if that keeps all threads at work and the workspace has a block of b for each; otherwise
/// their tasks are one list, in order. The bits are those of `matmul`.
void matmul_list(ThreadTeam& team, std::span<const Matmul> list, const Tensor& workspace);

/// Enough for a list of matmuls of at most these sizes each.
std::int64_t matmul_list_workspace_bytes(std::int64_t rows, std::int64_t columns,
                                         std::int64_t depth, DType c_dtype);

std::int64_t matmul_workspace_bytes(std::int64_t rows, std::int64_t columns, std::int64_t depth,
                                    DType c_dtype, bool one_thread = false);

/// The depth is halved until a piece has at most 768: 2^n even pieces, rounded up to a multiple of
/// 8, the last one shorter.
std::int64_t matmul_depth_piece(std::int64_t depth);

}  // namespace sherd::kernels::cpu
