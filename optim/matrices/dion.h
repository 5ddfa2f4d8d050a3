/// Dion (Ahn et al. 2025, arXiv:2504.05295): the matrices inside blocks move along an orthonormal
/// matrix of low rank, whose two factors are all that ranks exchange of an update; AdamW updates
/// everything else, as with Muon. For each matrix X [m, n], with a basis Q [n, r]:
///
///   M = M + g;   P = orthonormal(M Q);   R = M^T P
///   M = M - (1 - momentum) P R^T         what isn't used of M stays in it
///   Q = R, each column divided by its norm
///   X = X - lr weight_decay X - lr sqrt(m / n) P Q^T
///
/// r is `dion_rank_fraction` of the shorter side, rounded up. P is made orthonormal by Gram-Schmidt
/// (kernels/low_rank.h). A column of Q stays as it is if that of R is zero, so a matrix without
/// gradients doesn't move, and its basis isn't lost. The first Q is normal, by the run's seed.
///
/// How ranks share the work: optim/matrices/matrix_optimizer.h. M is gathered; owners broadcast P and R,
/// r (m + n) numbers in place of m n. Every rank then updates M, X and Q with them. CPU only.
///
/// Decoupled   with `dion_decoupled`, replicas have momenta of their own and add factors in place of
///             gradients: dion_sum.h. What is here then only moves the weights.
///
/// State   `momentum`, in slices; `dion_q`: the Q of a parameter's matrices, the same on all ranks
///         (expert ranks: of their experts' matrices).
/// Memory  that of every optimizer of matrices; 4 bytes for each number of Q; the factors of the
///         largest unit; the workspace of the largest matrix's products.
#pragma once

#include "optim/optimizer.h"

namespace sherd::optim {

inline constexpr std::string_view kDionBasisKind = "dion_q";

/// Of a parameter: [vectors of all its whole matrices, columns].
std::vector<std::int64_t> dion_basis_shape(const OptimizerOptions& options,
                                           const ParameterSpec& parameter);

OptimizerDescriptor dion_descriptor();

}  // namespace sherd::optim
