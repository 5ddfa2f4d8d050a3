/// How a model is cut over tensor ranks: a rank's sizes, and which boxes of each parameter it
/// holds. Pure arithmetic, the same on every rank.
///
///   parameter                         [rows, columns]    cut
///   embedding.token, head             [V, D]             rows, ceil(V / R) each, the last rank
///                                                        fewer
///   attention.qkv weight and bias     [(H + 2 G) K, D]   rows: heads; query, key, value apart
///   attention.output.weight           [D, H K]           columns: heads
///   mlp.up weight and bias            [F or 2 F, D]      rows; gate and up apart
///   mlp.down.weight                   [D, F]             columns
///   moe.experts.up weight and bias    [E U, D]           rows: of each expert's gate and up a part
///   moe.experts.down                  [E D, F]           columns
///   norms of whole projections        [H K], [G K]       rows: heads
///   attention.query, .query_up        [H (N + R), ...]   rows: heads, of latent attention
///   attention.kv_up                   [H (N + V), C]     rows: heads
///   attention.sinks                   [H]                rows: heads
///   adapters                          [r, I], [O, r]     as their matrix: columns in A, rows in B
///   all others                                           none: every rank has a copy
///
/// So attention and MLP begin with a matrix whose outputs are cut (column-parallel) and end with
/// one whose inputs are cut (row-parallel); nothing is exchanged in between (Shoeybi et al.,
/// arXiv:1909.08053). Biases of the latter are added once.
///
/// With fewer key/value heads than ranks, R / G ranks hold copies of each head. Copies stay equal,
/// since all receive the same gradient (engine/model/collectives.h).
///
/// Canonical sums (sum_canonically): bit-identical on 1, 2, 4 or 8 ranks. Every sum over heads,
/// feed-forward width or vocabulary is a balanced tree over eight groups; ranks have whole,
/// consecutive groups (engine/model/cut/canonical_sums.cpp). With sequence parallelism each rank
/// has whole groups of tokens, too; micro-batches then have one sequence.
///
/// Latent attention (layer_shapes.h): every rank computes all latents, and attention.output has
/// H V columns. Gradients of what leads to the latents are sums over ranks, each of which has those
/// of its own heads.
///
/// Experts are cut by their width, so that all ranks route the same tokens; routers and gates are
/// whole. Expert ranks (expert_cut.h) divide them first.
///
/// Errors   UsageError with the nearest degree that works, if heads, feed-forward widths or
///          vocabulary can't be cut so.
#pragma once

#include <span>
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

/// Errors   UsageError if ranks can't share its sequences in whole groups of tokens, which
///          canonical sums need.
void check_sequence_groups(const ModelShape& whole);

/// The shape of what rank `rank` of `degree` holds; the whole shape if degree is 1.
ModelShape tensor_part(const ModelShape& whole, int degree, int rank);

/// For each unit of parameter_table(tensor_part(whole, degree, rank)), its parameters.
std::vector<std::vector<ParameterCut>> tensor_cut(const ModelShape& whole, int degree, int rank);
/// The same, for the units `ids` only, which are in the table's order.
std::vector<std::vector<ParameterCut>> tensor_cut(const ModelShape& whole, int degree, int rank,
                                                  std::span<const UnitId> ids);

/// Elements of a row per scale of four-bit codes (kernels/nf4.h).
inline constexpr std::int64_t kQuantisedBlock = kernels::kNf4Block;
/// Whether each rank's part of a block's matrices can keep the codes of the whole matrices, that
/// is, whether it has whole blocks of every row. One rank always can; a degree that can't cut the
/// matrices at all never can.
bool cuts_between_blocks(const ModelShape& whole, int degree);

/// Whether each tensor rank has a copy of this parameter and only a part of its gradient: norms of
/// heads, what leads to latents, an adapter's uncut matrices, and with sequence parallelism norms
/// of the residual stream.
bool is_summed_over_tensor_ranks(const ModelShape& whole, std::string_view parameter);

}  // namespace sherd::model
