/// Sums of gradients over replicas that are compressed, with feedback of what wasn't sent.
///
///   low rank   optim/low_rank_sum.h
///   sparse     optim/sparse_sum.h
///
/// Replicas have the same ranks with the same slices. All of them get the same sum, bit for bit, so
/// their weights stay equal. What a replica didn't send stays with it, in slices as the optimizer's
/// state: a checkpoint holds it for each replica.
///
/// State of a parameter    own: each replica's, a number for each element; shared: the same on all
///                         replicas. `own_kinds` and `shared_kinds` list them.
/// Other replica counts    each replica takes 1 / W' of the sum of all errors (engine/saving).
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "optim/compression.h"
#include "optim/optimizer.h"
#include "sharding/zero/replica_sum.h"

namespace sherd::optim {

/// One kind of state of a parameter in checkpoints.
struct SumKind {
  std::string kind;
  std::vector<std::int64_t> shape{};
  /// Whether every rank of a replica has all of it. Otherwise it is divided as the parameter is.
  bool is_whole = false;
};

class CompressedSum : public sharding::ReplicaSum {
 public:
  /// What it acquires, and what a rank sends for all units in a step. Steps that send whole
  /// gradients, and the warm-up of sparse sums, aren't counted.
  static std::vector<BufferSpec> buffers(const Compression& options,
                                         const sharding::ShardingPlan& plan, int num_micro_steps);
  static sharding::Traffic traffic(const Compression& options, const sharding::ShardingPlan& plan);
  /// Of a parameter of the model's table.
  static std::vector<SumKind> own_kinds(const Compression& options, const ParameterSpec& parameter);
  static std::vector<SumKind> shared_kinds(const Compression& options,
                                           const ParameterSpec& parameter);
  /// Null if nothing is compressed.
  static std::unique_ptr<CompressedSum> make(const Compression& options,
                                             const sharding::Rank& rank,
                                             const std::vector<sharding::UnitState>& units,
                                             int num_micro_steps);

  /// Before a step's first reduction. `epoch` counts from 0. A step without targets has no
  /// gradient: it neither sends errors nor changes them.
  virtual void begin_step(std::int64_t step, std::int64_t epoch, bool has_targets) = 0;
  /// Errors are zero, and bases are the first ones.
  virtual void begin() = 0;

  /// This rank's state: ranges of parameters, of this replica or of all. Of a kind that is whole,
  /// `first_element` counts its own numbers.
  virtual std::vector<MomentPiece> own_pieces() const = 0;
  virtual std::vector<MomentPiece> shared_pieces() const = 0;
};

}  // namespace sherd::optim
