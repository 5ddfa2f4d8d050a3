/// How a model is cut over tensor ranks: what a rank's sizes are, and which boxes of each parameter it holds.
/// Arithmetic alone, the same on every rank.
///
///   parameter                         [rows, columns]    cut
///   embedding.token, head             [V, D]             rows, ceil(V / R) each, the last rank fewer
///   attention.qkv weight and bias     [(H + 2 G) K, D]   rows: heads, of query, key and value apart
///   attention.output.weight           [D, H K]           columns: heads
///   mlp.up weight and bias            [F or 2 F, D]      rows, of gate and up apart
///   mlp.down.weight                   [D, F]             columns
///   norms of whole projections        [H K], [G K]       rows: heads
///   adapters                          [r, I], [O, r]     as their matrix: A its columns, or B its rows
///   all others                                           none: every rank has a copy
///
/// So attention and MLP begin with a matrix whose outputs are cut and end with one whose inputs are: in
/// between nothing is exchanged. (Shoeybi et al., arXiv:1909.08053.) The biases of the latter are added once.
///
/// With fewer key/value heads than ranks, R / G ranks hold copies of one of them. Copies stay equal, since
/// all have the same gradient (engine/model/collectives.h).
///
/// Canonical sums (sum_canonically): the same bits on 1, 2, 4 or 8 ranks. Every sum over heads, feed-forward width or
/// vocabulary is a balanced tree over eight groups, of which ranks have whole ones, neighbours
/// (engine/model/cut/canonical_sums.cpp). With sequence parallelism each has whole groups of tokens, too: micro-batches are
/// of one sequence then.
///
/// Errors   UsageError with the nearest degree that works, where heads, feed-forward width or vocabulary
///          can't be cut so.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "core/box.h"
#include "core/parameter.h"
#include "engine/model/shape.h"
#include "kernels/nf4.h"

namespace sherd::model {

/// Makes the sums of a whole model canonical.
void sum_canonically(ModelShape& whole);

/// Errors   UsageError where ranks can't share its sequences in whole groups of tokens, as canonical sums want it.
void check_sequence_groups(const ModelShape& whole);

/// The shape of what rank `rank` of `degree` holds; the whole where degree is 1.
ModelShape tensor_part(const ModelShape& whole, int degree, int rank);

/// For each unit of parameter_table(tensor_part(whole, degree, rank)), its parameters.
std::vector<std::vector<ParameterCut>> tensor_cut(const ModelShape& whole, int degree, int rank);

/// Elements of a row that four-bit codes have a scale for (kernels/nf4.h).
inline constexpr std::int64_t kQuantisedBlock = kernels::kNf4Block;
/// Whether each rank can have its part of a block's matrices as the codes that the whole ones have: of every row, whole
/// blocks. One rank always can; a degree that can't cut the matrices at all never does.
bool cuts_between_blocks(const ModelShape& whole, int degree);

/// Whether each tensor rank has a part of the gradient of this parameter, of which it has a copy: of norms of heads, of
/// an adapter's matrix that isn't cut, and with sequence parallelism of norms of the residual stream.
bool is_summed_over_tensor_ranks(const ModelShape& whole, std::string_view parameter);

}  // namespace sherd::model
