/// The exchange of replicas that train apart (local_updates.h has the equations), on one rank.
///
/// A rank keeps the global weights and the outer momentum of its own slice of every unit, at every
/// stage. So a fragment crosses the replicate axis once for each slice, and never whole:
///
///   send     own stream, by unit: an all-to-all of the changes, their sum in f32 in the order of
///            the replicas, an all-gather of the sums, the outer step. Both carry the bytes of
///            LocalUpdates::quantize
///   apply    the compute stream waits for it and mixes; at stage 0 with several ranks in the ZeRO
///            group, an all-gather of the FP32 parameters among these
///
/// Between `send` and `apply` the exchange runs under the steps. The global weights of a fragment
/// are those after its outer step as soon as it is sent: nothing else is in flight that a
/// checkpoint would have to hold.
///
/// Memory   per element of a slice 4 bytes for the global weights, 4 for the momentum if it isn't 0,
///          and the changes that are in flight: with a delay those of the largest fragment,
///          otherwise of the largest unit. With several replicas, the bytes that this unit's slice
///          has on the link: what others sent, and with `quantize` what is sent.
/// Streams  calls come from the rank's thread. They use the compute stream, and at stage 0 the
///          reduce stream.
#pragma once

#include <chrono>
#include <memory>
#include <vector>

#include "optim/local_updates.h"
#include "optim/optimizer.h"

namespace sherd::optim {

class OuterUpdate {
 public:
  /// `fragments`: of each unit on this rank, -1 without trained parameters. Empty if local updates
  /// aren't active.
  static std::vector<BufferSpec> buffers(const LocalUpdates& options,
                                         const sharding::ShardingPlan& plan,
                                         const std::vector<int>& fragments);
  /// What a rank sends for one exchange of a fragment.
  static sharding::Traffic traffic(const LocalUpdates& options, const sharding::ShardingPlan& plan,
                                   const std::vector<int>& fragments, int fragment);

  /// The global weights begin as the parameters are.
  OuterUpdate(const LocalUpdates& options, const OptimizerOptions& optimizer,
              const sharding::Rank& rank, const std::vector<sharding::UnitState>& units,
              std::vector<int> fragments);
  ~OuterUpdate();

  /// The global weights are the parameters again, and the momentum is zero.
  void begin();
  bool has(int fragment, int unit) const {
    return fragments_[static_cast<std::size_t>(unit)] == fragment;
  }
  /// A collective of the replicas that doesn't block.
  void send(int fragment);
  /// The parameters of the fragment's units have changed: publish them. A collective at stage 0.
  void apply(int fragment);
  /// The compute stream waits for what was sent.
  void settle();
  /// Exchanges a unit's parameters and the global weights, bit for bit. Twice: as before. Call
  /// `settle` before the first unit. A collective at stage 0.
  void exchange(int unit);

  /// Of this rank's own slices: global weights of kind "param", and the momentum.
  std::vector<MomentPiece> pieces() const;
  /// Processor time of the exchange.
  std::chrono::nanoseconds cpu_time() const;

 private:
  struct Unit;
  struct State;

  Tensor parameters(std::size_t unit) const;
  Tensor change_of(std::size_t unit) const;
  void add_up(std::size_t unit, const Tensor& change);
  void complete(std::size_t unit);

  LocalUpdates options_;
  const sharding::Rank* rank_;
  const std::vector<sharding::UnitState>* units_;
  std::vector<int> fragments_;
  std::unique_ptr<State> state_;
};

}  // namespace sherd::optim
