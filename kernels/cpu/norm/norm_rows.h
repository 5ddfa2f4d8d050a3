/// One row of a norm, forward and backward: used by kernels/cpu/norm/norm.cpp and qk_norm.cpp for
/// rows at any position.
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

/// What the gradient of a row needs in addition to its elements. With xhat = (r - mean) rstd and g
/// = dy (weight + offset), over the D elements of the row:
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

/// dr[i] = the gradient of r for one block of a row, plus `after[i]` unless null. All pointers are
/// to the block's elements.
template <class T>
void differentiate_block(const NormShape& shape, const RowMeans& means, const T* r, const T* dy,
                         const T* weight, const T* after, int count, float* dr);

/// How the rows of a norm's weight gradient are cut into blocks. It depends only on their number.
/// Each block adds its rows in order into its own sums.
std::int64_t rows_per_block(std::int64_t tokens);
/// 512 rows make 64 blocks, 513 make 57: the most blocks for this many rows or fewer.
std::int64_t most_row_blocks(std::int64_t tokens);

/// The same with token groups: a group's positions are cut into blocks depending only on their
/// number. A block has those positions of every sequence, one sequence after another.
class BlocksOfTokens {
 public:
  /// `groups` may be none.
  BlocksOfTokens(const TokenGroups& groups, std::int64_t tokens);

  std::int64_t count() const { return num_groups() * of_a_group_; }
  std::int64_t of_a_group() const { return of_a_group_; }
  int num_groups() const { return groups_.groups; }
  /// Enough at every shape with at most this many tokens.
  static std::int64_t most(const TokenGroups& groups, std::int64_t tokens);

  template <class Visit>
  void for_each_token(std::int64_t block, const Visit& visit) const {
    const int group = static_cast<int>(block / of_a_group_);
    const std::int64_t before = block % of_a_group_ * rows_;
    const std::int64_t first = groups_.first(group) + before;
    const std::int64_t end = std::min(first + rows_, groups_.first(group) + groups_.count(group));
    for (std::int64_t sequence = 0; sequence < groups_.sequences; ++sequence) {
      for (std::int64_t at = first; at < end; ++at) visit(sequence * groups_.positions + at);
    }
  }

 private:
  TokenGroups groups_;  // without groups: one of all tokens
  std::int64_t rows_, of_a_group_;
};

/// out = the sum over blocks of partial rows, `stride` apart: in order, or each group in order and
/// then as a tree over groups. A group's sum overwrites its first block.
void sum_blocks(ThreadTeam& team, float* partial, const BlocksOfTokens& blocks, std::int64_t stride,
                bool add_to_output, const Tensor& out);

/// out = the sum of `blocks` partial rows, `stride` apart, in order, plus `out` itself if
/// requested.
void sum_partials(ThreadTeam& team, const float* partial, std::int64_t blocks, std::int64_t stride,
                  bool add_to_output, Tensor out);

}  // namespace sherd::kernels::cpu
