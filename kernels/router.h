/// The router of a mixture of experts: which experts a token goes to, and with which weights.
///
///   s        = softmax(l) over all experts, or 1 / (1 + e^-l), or l itself    l: the logits [T, E]
///   choice   the k experts with the largest s + bias. Equal values: the lower number first.
///            With groups: only experts of the best groups. A group's value is its largest s +
///            bias, or the sum of its two largest.
///   weight   s of the chosen ones (without the bias), times scale; with `normalise` divided by
///            their sum; or softmax over the chosen logits
///
/// Without bias and groups, sigmoids are compared by their logits, which don't saturate.
///
/// sparsemixer (Phi-3.5-MoE; Liu et al., arXiv:2310.00811), evaluation only, k = 2:
///
///   first    the largest l, M; its weight is its softmax over the e with
///            (M - l_e) / max(|l_e|, M) <= 2 jitter
///   second   the same without the first expert
///
/// Losses, which keep experts in balance, for each balance group of n tokens (a sequence, or the
/// micro-batch):
///
///   p_te     = s_te divided by the sum over e of s_te
///   balance  = alpha E / (k n^2) sum_e c_e sum_t p_te     c_e: tokens that chose e. 1 alpha if
///                                                         balanced.
///   z        = beta / n sum_t (log sum_e e^l_te)^2
///
/// c is constant in the gradient. It may also be given, with its own n: the counts of the step
/// before.
///
/// Sources   Shazeer et al. 2017; Fedus et al. 2021 (balance); Zoph et al. 2022 (z); DeepSeek-V3
///           (2024: sigmoid, groups, bias, loss per sequence).
/// Shapes    logits, d_logits f32 [T, E]; bias f32 [E]; chosen i32 [T, k], ascending; weights,
///           d_weights f32 [T, k]; counts i32 [B, E], of each sequence; balance f32
///           [groups, E + 2]: per expert the loss's derivative by p_te, then the two losses.
/// Padding   tokens after a sequence's documents aren't routed: chosen is -1, weights and gradients
///           are 0, and they count nowhere.
/// Bits      a token's choice and weights follow from its logits alone; counts are integers; losses
///           add up to 32 neighbouring tokens of a sequence in order, then these sums, then
///           sequences in order. A GPU has a CPU's bits.
#pragma once

#include <vector>

#include "core/host_device.h"
#include "core/stream.h"
#include "core/tensor.h"
#include "kernels/device.h"
#include "kernels/documents.h"
#include "kernels/kinds.h"

namespace sherd::kernels {

struct RouterShape {
  std::int64_t sequences = 1, positions = 1;  ///< T = their product
  std::int64_t experts = 1;                   ///< E
  int per_token = 1;                          ///< k
  RouterScore score = RouterScore::kSoftmax;
  bool normalise = false;
  float scale = 1.0f;
  float least_sum = 0.0f;  ///< what weights are divided by is at least this
  float added_sum = 0.0f;  ///< or has this added to it
  float jitter = 0.0f;     ///< of sparsemixer
  int groups = 1, kept_groups = 1;
  int group_scores = 1;  ///< 1: a group's largest; 2: the sum of its two largest
  BalanceScope scope = BalanceScope::kSequence;
  float balance = 0.0f, z = 0.0f;  ///< alpha and beta; 0: no such loss

  std::int64_t tokens() const { return sequences * positions; }
  std::int64_t balance_groups() const { return scope == BalanceScope::kSequence ? sequences : 1; }
};

/// Where a rank's tokens are in whole rows, if it has one or two runs of each row's positions.
struct RowPart {
  std::int64_t positions = 0;  ///< of a whole row; 0: the rank has all of them
  std::int64_t first = 0;
  std::int64_t gap_at = 0, gap = 0;  ///< `gap` positions are left out before token gap_at

  /// The number in whole rows of token `t`, of rows with `own` tokens here.
  SHERD_HOST_DEVICE std::int64_t token_of(std::int64_t t, std::int64_t own) const {
    if (positions == 0) return t;
    const std::int64_t i = t % own;
    return t / own * positions + first + i + (i >= gap_at ? gap : 0);
  }
};

struct RouterForward {
  RouterShape shape;
  ConstTensor logits, bias;  ///< bias may be empty
  Documents documents{};     ///< where padding is; empty: there is none
  RowPart part{};
  Tensor chosen, weights, counts;
  Tensor balance{};  ///< may be empty: then router_losses follows
  /// For kPreviousStep: i32 [E + 1], each expert's count and then the number of tokens.
  ConstTensor previous_counts{};
  Tensor workspace{};  ///< router_workspace_bytes
};
void router_forward(Stream& stream, const RouterForward& args);

/// The losses of balance of ranks that have parts of the same sequences, after router_forward.
/// Counts and numbers of tokens are those of whole sequences; sums over tokens, so also the two
/// losses, are this rank's part.
struct RouterLosses {
  RouterShape shape;  ///< of this rank's tokens
  ConstTensor logits, chosen;
  ConstTensor rank_counts;  ///< i32 [C, B, E]: what every rank has counted
  Tensor counts, balance;   ///< counts: their sums
  ConstTensor previous_counts{};
  Tensor workspace{};  ///< router_workspace_bytes
};
void router_losses(Stream& stream, const RouterLosses& args);

/// totals += what one call decided: of each expert the tokens that chose it, then the two losses,
/// added up over balance groups.
struct RouterTotals {
  RouterShape shape;
  ConstTensor counts, balance;
  Tensor totals;  ///< f64 [E + 2]
};
void router_totals(Stream& stream, const RouterTotals& args);

/// bias[e] += rate if expert first + e has fewer rows than the mean, -= rate if it has more, by
/// integers: the sum of `counts` against E times one.
struct RouterCorrection {
  std::vector<std::int64_t> counts;  ///< [E], of a whole step
  std::int64_t first = 0;
  float rate = 0.0f;
  Tensor bias;  ///< f32, some of the E
};
void router_correction(Stream& stream, const RouterCorrection& args);

struct RouterBackward {
  RouterShape shape;
  ConstTensor logits, chosen, weights, d_weights, counts, balance;
  /// Of each balance group's loss in the sum that is differentiated; d_weights has it already.
  float loss_scale = 1.0f;
  Tensor d_logits;
};
void router_backward(Stream& stream, const RouterBackward& args);

/// Of the forward and of the losses. A GPU routes at most kMostGpuExperts experts, of which each of several groups
/// counts as two more.
std::int64_t router_workspace_bytes(const RouterShape& shape, const ComputeDevice& device);
inline constexpr std::int64_t kMostGpuExperts = 768;

}  // namespace sherd::kernels
