/// How the gradients of replicas become their sum: an interface with several implementations.
///
///   plain     f32 or 16 bits, exact in the order of the replicas
///   coded     in blocks of 64 with a scale (coded_reduction.h)
///   compressed, with errors that are fed back: optim/compressed_sum.h
///
/// Order    `add` once per unit and step, on the reduce stream, in the same order on every rank,
///          when the part has the sum over the unit's ZeRO group.
#pragma once

#include <vector>

#include "sharding/comm/communicator.h"
#include "sharding/mesh/rank.h"
#include "sharding/zero/coded_reduction.h"
#include "sharding/zero/unit.h"

namespace sherd::sharding {

class ReplicaSum {
 public:
  virtual ~ReplicaSum() = default;
  /// `part`: this rank's part of the gradient, summed over its replica -> summed over all. If
  /// replicas divide the optimizer's state, only this rank's slice of it needs to be.
  virtual void add(Stream& stream, int unit, const Tensor& part) = 0;
};

/// Communicators of each unit's replicas; null: the unit has one.
std::vector<Communicator*> replica_communicators(const Rank& rank,
                                                 const std::vector<UnitState>& units);

class PlainReplicaSum final : public ReplicaSum {
 public:
  PlainReplicaSum(const Rank& rank, const std::vector<UnitState>& units);
  void add(Stream& stream, int unit, const Tensor& part) override;

 private:
  const std::vector<UnitState>* units_;
  std::vector<Communicator*> replicas_;
};

class CodedReplicaSum final : public ReplicaSum {
 public:
  CodedReplicaSum(const Rank& rank, const std::vector<UnitState>& units, CodedReduction& coded);
  void add(Stream& stream, int unit, const Tensor& part) override;

 private:
  const std::vector<UnitState>* units_;
  std::vector<Communicator*> replicas_;
  CodedReduction* coded_;
};

}  // namespace sherd::sharding
