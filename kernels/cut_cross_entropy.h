/// Cross-entropy (kernels/token.h) if ranks divide the vocabulary: each rank has the logits of its
/// own rows, and none has all logits of a token. There are three kernels; an exchange follows each
/// of the first two. With z as in kernels/token.h and R ranks:
///
///   logit_maxima       maxima[rank][t] = max over this rank's v of z[t,v]
///   ranks gather       maxima; below, m[t] = max over r of maxima[r][t]
///   exponential_sums   sums[0][t] = sum over this rank's v of exp(z[t,v] - m[t])
///                      sums[1][t] = z[t,target[t]] - m[t], or 0 if another rank has its row
///   ranks add up       sums
///   cut_cross_entropy  losses[t] = log sums[0][t] - sums[1][t]; and, if `gradient`, logits are
///                      overwritten with their gradient: grad_scale * (exp(z - m) / sums[0] -
///                      onehot(target)) times dz/dlogits
///
/// With a z-loss (kernels/token.h), lse[t] = log sums[0][t] + m[t], which every rank has: its
/// z_loss.losses are the same on every rank, and no number more is exchanged.
///
/// `weights` are as in kernels/token.h.
///
/// With a teacher (kernels/teacher.h), two more sums are formed and added up:
///   sums[2][t] = sum over this rank's v of exp((z[t,v] - m[t]) / s)
///   sums[3][t] = sum over k of p[t,k] (z[t,ids[t,k]] - m[t]), of the tokens in this rank's rows
/// divergence[t] = sum of p ln p - sums[3][t] / s + ln sums[2][t], the same on every rank.
///
/// A target of kNoTarget has zero loss and gradients, and adds nothing to the sums.
///
/// Source    Megatron-LM (Shoeybi et al., arXiv:1909.08053, section 3), which exchanges the same
///           three numbers.
/// Shapes    logits [T, V] of V rows of the vocabulary; targets [T] i32, ids of the whole
///           vocabulary; maxima [R, T], sums [2, T] ([4, T] with a
///           teacher), losses [T] f32. Logits f32, bf16 or f16; all
///           sums in f32.
/// Bits      m is exact: the same on any number of ranks. losses are the same on every rank.
/// Device    a GPU takes one group.
#pragma once

#include "kernels/token.h"

namespace sherd::kernels {

inline constexpr int kMostSumGroups = 8;

struct CutCrossEntropy {
  std::int64_t tokens = 0, num_rows = 0;  ///< T, V
  VocabularyRows rows{};
  int num_ranks = 1, rank = 0;
  Tensor logits;
  ConstTensor targets;
  Tensor maxima, sums, losses;
  bool gradient = true;
  float grad_scale = 1.0f;
  LogitsForm form{};
  /// With more than one, a sum is a balanced tree over groups of this rank's rows; group j is [j N,
  /// (j + 1) N). It is the same on any number of ranks that have whole groups.
  int groups = 1;
  std::int64_t rows_of_a_group = 0;
  ZLoss z_loss{};
  ConstTensor weights{};  ///< f32 [T]; empty: all 1
  Teacher teacher{};

  std::int64_t num_sums() const { return teacher ? 4 : 2; }
};
void logit_maxima(Stream& stream, const CutCrossEntropy& args);
void exponential_sums(Stream& stream, const CutCrossEntropy& args);
void cut_cross_entropy(Stream& stream, const CutCrossEntropy& args);

}  // namespace sherd::kernels
