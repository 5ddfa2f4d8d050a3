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
/// Bits       every rank of a replica gathers the unit and computes the factors, so results are the
///            same at every stage and on any number of shards.
/// State      error: each replica's, of matrices alone. power_sgd_q: Q, the same on all ranks.
/// Memory     per rank 4 bytes for each element of its slices and those of Q; the largest unit, if a
///            replica has several ranks; the factors of the largest unit.
#pragma once

#include "optim/compressed_sum.h"

namespace sherd::optim {

/// Kinds of state in checkpoints.
inline constexpr const char* kErrorKind = "error";
inline constexpr const char* kBasisKind = "power_sgd_q";

/// Whether factors of the parameter's matrices are sent.
bool has_low_rank(const LowRankOptions& options, const ParameterSpec& parameter);
/// Of Q: [vectors of all its matrices, columns].
std::vector<std::int64_t> basis_shape(const LowRankOptions& options,
                                      const ParameterSpec& parameter);
/// Elements that replicas exchange for a parameter, in place of its own.
std::int64_t low_rank_numel(const LowRankOptions& options, const ParameterSpec& parameter);

std::vector<BufferSpec> low_rank_buffers(const Compression& options,
                                         const sharding::ShardingPlan& plan, int num_micro_steps);
sharding::Traffic low_rank_traffic(const Compression& options, const sharding::ShardingPlan& plan);
std::unique_ptr<CompressedSum> make_low_rank_sum(const Compression& options,
                                                 const sharding::Rank& rank,
                                                 const std::vector<sharding::UnitState>& units,
                                                 int num_micro_steps);

}  // namespace sherd::optim
