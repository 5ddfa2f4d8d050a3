/// Sums of gradients over replicas that are compressed, with feedback of what wasn't sent.
///
///   low rank   optim/low_rank_sum.h
///   sparse     optim/sparse_sum.h
///   for Dion   optim/matrices/dion_sum.h: the sum is the direction of the update
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
  /// gradients, the warm-up of sparse sums and averages of momenta aren't counted.
  static std::vector<BufferSpec> buffers(const Compression& options,
                                         const sharding::ShardingPlan& plan, int num_micro_steps);
  static sharding::Traffic traffic(const Compression& options, const sharding::ShardingPlan& plan);
  /// Of a parameter of the model's table and its unit.
  static std::vector<SumKind> own_kinds(const Compression& options, const UnitSpec& unit,
                                        const ParameterSpec& parameter);
  static std::vector<SumKind> shared_kinds(const Compression& options, const UnitSpec& unit,
                                           const ParameterSpec& parameter);
  /// Elements that replicas exchange for a parameter whose factors are sent, or all.
  static std::int64_t factored_numel(const Compression& options, const UnitSpec& unit,
                                     const ParameterSpec& parameter);
  /// Null if nothing is compressed.
  static std::unique_ptr<CompressedSum> make(const Compression& options, const sharding::Rank& rank,
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

/// What the implementations exchange. The ranks of a replica form whole units, so that what is sent
/// doesn't depend on where slices are cut. Each then exchanges an equal *share* of it with the other
/// replicas, and they gather the shares. Tensor ranks that have the same vector share it, too.
class ReplicaLinks {
 public:
  ReplicaLinks(const sharding::Rank& rank, const std::vector<sharding::UnitState>& units);

  /// Elements that can be shared out: a multiple of the ranks of a replica, of the replicas, of
  /// `tensor_ranks` and of 16.
  static std::int64_t padded(const sharding::UnitPlan& unit, std::int64_t numel,
                             int tensor_ranks = 1);
  static void add_gather_traffic(const sharding::UnitPlan& unit, sharding::Traffic& traffic);
  static void add_sum_traffic(const sharding::UnitPlan& unit, std::int64_t padded,
                              sharding::Traffic& traffic, int tensor_ranks = 1);
  /// Of a unit that is sent whole.
  static void add_plain_traffic(const sharding::UnitPlan& unit, sharding::Traffic& traffic);

  /// The whole unit: `part` itself, or gathered into `full`.
  Tensor gather(Stream& stream, int unit, const Tensor& part, const Tensor& full) const;
  /// Adds a vector of `padded` elements, which all ranks of a replica have, over replicas. With
  /// `shares_tensor`, its tensor ranks have the same, too.
  void sum(Stream& stream, int unit, const Tensor& vector, bool shares_tensor = false) const;
  /// Adds the part itself.
  void sum_plainly(Stream& stream, int unit, const Tensor& part) const;

  sharding::Communicator* replicas(int unit) const {
    return replicas_[static_cast<std::size_t>(unit)];
  }
  sharding::Communicator& group(int unit) const { return *groups_[static_cast<std::size_t>(unit)]; }
  int tensor_degree() const { return tensor_degree_; }
  int tensor_rank() const { return tensor_rank_; }
  /// Null: one tensor rank.
  sharding::Communicator* tensor_ranks() const { return tensor_ranks_; }
  const sharding::UnitState& state(int unit) const {
    return (*units_)[static_cast<std::size_t>(unit)];
  }

 private:
  const std::vector<sharding::UnitState>* units_;
  std::vector<sharding::Communicator*> replicas_;  // null: one replica
  std::vector<sharding::Communicator*> groups_;
  int tensor_degree_, tensor_rank_;
  sharding::Communicator* tensor_ranks_ = nullptr;
};

/// Phases in which a step's last reductions may run.
Phases phases_of_sums(int num_micro_steps);

}  // namespace sherd::optim
