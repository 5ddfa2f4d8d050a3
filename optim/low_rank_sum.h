/// PowerSGD: replicas exchange thin factors of their gradients instead of the gradients (Vogels et
/// al. 2019, arXiv:1905.13727). For each matrix M_w = gradient of replica w + its error:
///
///   Q     = the previous step's, made orthonormal (Gram-Schmidt, in the order of its vectors)
///   P     = sum over w of M_w Q, made orthonormal
///   Q_w   = M_w^T P;   Q = sum over w of Q_w
///   sum   = P Q^T, which every replica uses as the sum of the gradients
///   error = M_w - P Q_w^T, each replica's own
///
/// So the sum over replicas of errors is the sum of M_w minus the sum that was used: what isn't
/// sent is sent later. (PyTorch's hook subtracts P Q^T / W instead. Differences between replicas
/// then never leave the errors, which grow with the square root of the steps.)
///
/// Matrices   are those that are stacked in a parameter with two dimensions: query, key and value
///            are apart. Each has at most min(rows, columns) vectors.
/// Whole      are parameters with one dimension, and those of which the factors times
///            `min_compression_rate` have no fewer elements. They are added with the P.
/// Begin      steps before `start_step` add whole gradients. Vectors of Q that are zero, as all are
///            at first, or depend on others are drawn from `seed`.
/// State      error: each replica's, of matrices alone. power_sgd_q: Q, the same on all ranks.
/// Memory     optim/factored_sum.h
#pragma once

#include "optim/factored_sum.h"

namespace sherd::optim {

/// Kinds of state in checkpoints.
inline constexpr const char* kErrorKind = "error";
inline constexpr const char* kBasisKind = "power_sgd_q";

FactorForm low_rank_form(const LowRankOptions& options);
std::unique_ptr<CompressedSum> make_low_rank_sum(const LowRankOptions& options,
                                                 const sharding::Rank& rank,
                                                 const std::vector<sharding::UnitState>& units,
                                                 int num_micro_steps);

}  // namespace sherd::optim
