/// One row of a norm, forward and backward: what kernels/cpu/norm/norm.cpp and qk_norm.cpp do to their
/// rows, wherever these lie.
#pragma once

#include "kernels/cpu/blocks.h"
#include "kernels/norm.h"

namespace sherd::kernels::cpu {

struct RowStatistics {
  float mean, rstd;
};

/// Two passes for layernorm: the sum of squared differences from the mean doesn't cancel.
template <class T>
RowStatistics row_statistics(const NormShape& shape, const T* r);

/// y may be r. `bias` may be null.
template <class T>
void normalise_row(const NormShape& shape, const T* weight, const T* bias, const T* r,
                   RowStatistics statistics, T* y);

/// What the gradient of a row needs besides its elements. With xhat = (r - mean) rstd and
/// g = dy (weight + offset), over the D elements of the row:
///
///   layernorm   d(norm)/dr . dy = rstd (g - mean(g) - xhat mean(g xhat))
///   rmsnorm     d(norm)/dr . dy = rstd (g           - xhat mean(g xhat))
struct RowMeans {
  float mean, rstd;
  float mean_g = 0.0f, mean_g_xhat = 0.0f;
};

/// Adds the row's part of dweight and dbias to the partial sums and takes the row's two means.
template <class T>
RowMeans reduce_row(const NormShape& shape, RowStatistics statistics, const T* r, const T* dy,
                    const T* weight, float* dweight, float* dbias);

/// dr[i] = the gradient of r for one block of a row, plus `after[i]` where that isn't null. All
/// pointers are to the block's elements.
template <class T>
void differentiate_block(const NormShape& shape, const RowMeans& means, const T* r, const T* dy,
                         const T* weight, const T* after, int count, float* dr);

/// How the rows of a norm's weight gradient are cut into blocks, by their number alone: each block
/// adds its rows in order into sums of its own.
std::int64_t rows_per_block(std::int64_t tokens);
std::int64_t num_row_blocks(std::int64_t tokens);
/// 512 rows make 64 blocks, 513 make 57: the most that so many rows or fewer are cut into.
std::int64_t most_row_blocks(std::int64_t tokens);

/// out = the sum of `blocks` partial rows, `stride` apart, in order, plus `out` itself if asked.
void sum_partials(ThreadTeam& team, const float* partial, std::int64_t blocks, std::int64_t stride,
                  bool add_to_output, Tensor out);

}  // namespace sherd::kernels::cpu
