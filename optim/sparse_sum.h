/// Deep gradient compression: replicas exchange the largest elements of what their gradients add up to
/// (Lin et al. 2018, arXiv:1712.01887). For each element of replica w, with W replicas:
///
///   g     = the replica's gradient, clipped locally
///   u     = momentum u + g          momentum correction; without it u is g, and isn't kept
///   v     = v + u
///   sent  = v where it is among the largest, else 0;   v = v - sent
///   u     = 0 where it was sent     momentum masking
///   sum   = sum over w of sent, in the order of replicas
///
/// The optimizer, SGD, then subtracts lr times the sum. With momentum correction it has no momentum of
/// its own. Without it, it has, and v holds plain gradients.
///
/// Choice     within chunks of 65,536 neighbouring elements of a parameter, counted from its first:
///            kernels/sparse.h has the rule. So it is the same at every stage and on any number of
///            shards. ceil(ratio n) entries of 8 bytes are sent for a chunk of n, some of them
///            empty, so bytes are known beforehand.
/// Whole      are parameters with one dimension: they are added, and u follows their sum.
/// Clipping   is of a replica's mean gradient, W g: by `norm`, that of each parameter to
///            clip_threshold / sqrt(W); by `value`, each element to clip_threshold.
/// Warm-up    epoch e < warmup_epochs sends warmup_coeff^(e + 1) of the elements, if that is more.
/// State      error: v, velocity: u; each replica's, of parameters that are compressed. The u of
///            whole ones are the same on all replicas.
/// Memory     per rank 8 bytes for each element of its slices, 4 without a velocity; the largest
///            unit, if a replica has several ranks; the entries of all replicas for the largest unit.
#pragma once

#include "optim/compressed_sum.h"

namespace sherd::optim {

/// Kinds of state in checkpoints; errors are kErrorKind, as in low-rank sums.
inline constexpr const char* kVelocityKind = "velocity";
inline constexpr std::int64_t kSparseChunk = 65536;

/// Whether a velocity is kept.
bool has_velocity(const SparseOptions& options);
/// Whether the parameter's largest elements are sent.
bool is_sparse(const ParameterSpec& parameter);
/// The ranges among which a choice is made, in order. Tensor ranks have chunks of each of their boxes,
/// so those that have copies of one choose alike.
struct SparseRange {
  std::int64_t first = 0, count = 0;  ///< of the parameter's elements, or of the rank's part
};
std::vector<SparseRange> sparse_chunks(const ParameterSpec& parameter);
/// Entries that a replica sends for the parameter.
std::int64_t sparse_entries(double ratio, const ParameterSpec& parameter);

std::vector<BufferSpec> sparse_buffers(const Compression& options,
                                       const sharding::ShardingPlan& plan, int num_micro_steps);
sharding::Traffic sparse_traffic(const Compression& options, const sharding::ShardingPlan& plan);
std::unique_ptr<CompressedSum> make_sparse_sum(const Compression& options,
                                               const sharding::Rank& rank,
                                               const std::vector<sharding::UnitState>& units,
                                               int num_micro_steps);

}  // namespace sherd::optim
