/// Sends gradients from workers to owners, and parameters from owners to workers: a parameter
/// server's push and pull (docs/parameter_server.md), by the plan instead of by request.
///
/// A unit's flat buffer has F elements. Element k is a *key*. Owner j of N has the keys
/// [j F/N, (j+1) F/N). At stage 3, worker r of W keeps the keys [r F/W, (r+1) F/W); at stages 1 and
/// 2 it keeps all of them. F is a multiple of 64 N W.
///
///   push   each worker sends each owner the gradients of the owner's keys. The owner adds them in
///          the order of workers: sum + g_0 + g_1 + ..., in f32, rounded once to the sum's type.
///          This is the sum of a reduce_scatter among the workers.
///   pull   each owner sends each worker the parameters of the keys that both have.
///
/// Both are all_to_all_v among all ranks of the world. Each rank calls them for the same units in the
/// same order, so nobody waits for a key that nobody sends.
///
/// Memory   an owner has one buffer for what workers have sent of a unit: W slices of the largest.
/// Cost     push: F elements of a worker. pull: F of each worker that keeps all keys, F/W otherwise.
#pragma once

#include <optional>
#include <vector>

#include "core/memory.h"
#include "sharding/mesh/traffic.h"
#include "sharding/zero/unit.h"

namespace sherd::sharding {

class Communicator;

/// Keys [first, first + count) of a unit.
struct KeyRange {
  std::int64_t first = 0, count = 0;
  bool operator==(const KeyRange&) const = default;
};
/// The keys of which owner `owner` has the state.
KeyRange keys_of_owner(const UnitPlan& unit, const Mesh& mesh, int owner);
/// The keys of which worker `worker` keeps parameters.
KeyRange keys_of_worker(const UnitPlan& unit, const Mesh& mesh, int worker);

/// Where an owner receives gradients; none on workers.
std::optional<BufferSpec> pushed_buffer(const std::vector<UnitPlan>& units, const Mesh& mesh,
                                        int num_micro_steps);
/// What rank `rank` sends when all units have been pushed `pushes` times, or pulled.
Traffic push_traffic(const std::vector<UnitPlan>& units, const Mesh& mesh, int rank, int pushes);
Traffic pull_traffic(const std::vector<UnitPlan>& units, const Mesh& mesh, int rank);

class OwnerPush {
 public:
  OwnerPush(const Rank& rank, const std::vector<UnitState>& units, int num_micro_steps);

  /// A worker sends `full`, its gradient of all keys. An owner adds what workers send to `sum`, or
  /// writes it there.
  void push(Stream& stream, int unit, const Tensor& full, const Tensor& sum, bool onto_sum);

 private:
  const Rank* rank_;
  const std::vector<UnitState>* units_;
  Communicator* world_ = nullptr;  // null: no owners
  Buffer pushed_;
};

class OwnerPull {
 public:
  OwnerPull(const Rank& rank, const std::vector<UnitState>& units);

  /// An owner sends `own`, the parameters of its keys. A worker receives those of its keys in `own`.
  void pull(Stream& stream, int unit, const Tensor& own);

 private:
  const Rank* rank_;
  const std::vector<UnitState>* units_;
  Communicator* world_ = nullptr;
};

}  // namespace sherd::sharding
