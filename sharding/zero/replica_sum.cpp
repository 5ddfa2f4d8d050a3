#include "sharding/zero/replica_sum.h"

#include "sharding/mesh/process_groups.h"

namespace sherd::sharding {

std::vector<Communicator*> replica_communicators(const Rank& rank,
                                                 const std::vector<UnitState>& units) {
  std::vector<Communicator*> communicators;
  for (const UnitState& unit : units) {
    communicators.push_back(
        unit.plan().num_replicas == 1
            ? nullptr
            : &rank.groups->get(replica_axes(unit.placement()), Purpose::kReduce));
  }
  return communicators;
}

PlainReplicaSum::PlainReplicaSum(const Rank& rank, const std::vector<UnitState>& units)
    : units_(&units), replicas_(replica_communicators(rank, units)) {}

void PlainReplicaSum::add(Stream& stream, int unit, const Tensor& part) {
  const UnitState& state = (*units_)[static_cast<std::size_t>(unit)];
  Communicator& replicas = *replicas_[static_cast<std::size_t>(unit)];
  if (!state.plan().divides_parts()) return replicas.all_reduce(stream, state.name(), part);
  const std::int64_t numel = state.layout().slice_numel();
  const Tensor own = part.part(state.own_slice() % state.plan().slices_per_part() * numel, numel);
  replicas.reduce_scatter(stream, state.name(), part, own);
}

CodedReplicaSum::CodedReplicaSum(const Rank& rank, const std::vector<UnitState>& units,
                                 CodedReduction& coded)
    : units_(&units), replicas_(replica_communicators(rank, units)), coded_(&coded) {}

void CodedReplicaSum::add(Stream& stream, int unit, const Tensor& part) {
  const UnitState& state = (*units_)[static_cast<std::size_t>(unit)];
  Communicator& replicas = *replicas_[static_cast<std::size_t>(unit)];
  coded_->add_replicas(stream, replicas, unit, part);
  if (!state.plan().divides_parts()) replicas.all_gather(stream, state.name(), part);
}

}  // namespace sherd::sharding
