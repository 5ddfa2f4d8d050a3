#include "optim/compressed_sum.h"

#include "optim/low_rank_sum.h"
#include "optim/sparse_sum.h"
#include "sharding/mesh/process_groups.h"

namespace sherd::optim {
namespace {

constexpr const char* kLabel = "gradients";
constexpr std::int64_t kShareAlignment = 16;

}  // namespace

Phases phases_of_sums(int num_micro_steps) {
  return num_micro_steps > 1 ? kForwardToBackward : kLoss | kBackward;
}

std::vector<BufferSpec> CompressedSum::buffers(const Compression& options,
                                               const sharding::ShardingPlan& plan,
                                               int num_micro_steps) {
  return options.sparse.active() ? sparse_buffers(options, plan, num_micro_steps)
                                 : low_rank_buffers(options, plan, num_micro_steps);
}

sharding::Traffic CompressedSum::traffic(const Compression& options,
                                         const sharding::ShardingPlan& plan) {
  return options.sparse.active() ? sparse_traffic(options, plan) : low_rank_traffic(options, plan);
}

std::vector<SumKind> CompressedSum::own_kinds(const Compression& options,
                                              const ParameterSpec& parameter) {
  if (options.sparse.active()) {
    if (!is_sparse(parameter)) return {};
    std::vector<SumKind> kinds = {{kErrorKind, parameter.shape}};
    if (has_velocity(options.sparse)) kinds.push_back({kVelocityKind, parameter.shape});
    return kinds;
  }
  if (!has_low_rank(options.low_rank, parameter)) return {};
  return {{kErrorKind, parameter.shape}};
}

std::vector<SumKind> CompressedSum::shared_kinds(const Compression& options,
                                                 const ParameterSpec& parameter) {
  if (options.sparse.active()) {
    if (is_sparse(parameter) || !has_velocity(options.sparse)) return {};
    return {{kVelocityKind, parameter.shape}};
  }
  if (!has_low_rank(options.low_rank, parameter)) return {};
  return {{kBasisKind, basis_shape(options.low_rank, parameter), true}};
}

std::unique_ptr<CompressedSum> CompressedSum::make(const Compression& options,
                                                   const sharding::Rank& rank,
                                                   const std::vector<sharding::UnitState>& units,
                                                   int num_micro_steps) {
  if (options.sparse.active()) return make_sparse_sum(options, rank, units, num_micro_steps);
  return make_low_rank_sum(options, rank, units, num_micro_steps);
}

ReplicaLinks::ReplicaLinks(const sharding::Rank& rank,
                           const std::vector<sharding::UnitState>& units)
    : units_(&units), replicas_(sharding::replica_communicators(rank, units)) {
  for (const sharding::UnitState& unit : units) {
    SHERD_CHECK(!unit.plan().divides_parts() && !unit.plan().has_owners() &&
                    unit.precision().accumulate == DType::kF32,
                "a compressed sum of {}", unit.name());
    groups_.push_back(&rank.groups->get(unit.placement().group, sharding::Purpose::kReduce));
  }
}

std::int64_t ReplicaLinks::padded(const sharding::UnitPlan& unit, std::int64_t numel) {
  const std::int64_t multiple = kShareAlignment * unit.num_parts * unit.num_replicas;
  return (numel + multiple - 1) / multiple * multiple;
}

void ReplicaLinks::add_gather_traffic(const sharding::UnitPlan& unit, sharding::Traffic& traffic) {
  if (unit.num_parts == 1) return;
  traffic.add("whole gradients", sharding::Collective::kAllGather, DType::kF32, unit.layout.numel(),
              unit.group());
}

void ReplicaLinks::add_sum_traffic(const sharding::UnitPlan& unit, std::int64_t padded,
                                   sharding::Traffic& traffic) {
  if (unit.num_replicas == 1) return;
  traffic.add("compressed gradients", sharding::Collective::kAllReduce, DType::kF32,
              padded / unit.num_parts, unit.replicas());
  if (unit.num_parts == 1) return;
  traffic.add("compressed gradients", sharding::Collective::kAllGather, DType::kF32, padded,
              unit.group());
}

void ReplicaLinks::add_plain_traffic(const sharding::UnitPlan& unit, sharding::Traffic& traffic) {
  if (unit.num_replicas == 1) return;
  traffic.add(kLabel, sharding::Collective::kAllReduce, DType::kF32, unit.part_numel(),
              unit.replicas());
}

Tensor ReplicaLinks::gather(Stream& stream, int unit, const Tensor& part,
                            const Tensor& full) const {
  const sharding::UnitState& of = state(unit);
  if (of.plan().num_parts == 1) return part;
  const Tensor whole = full.part(0, of.layout().numel());
  stream.copy(part.data, of.part_of(whole).data, part.bytes());
  group(unit).all_gather(stream, of.name(), whole);
  return whole;
}

void ReplicaLinks::sum(Stream& stream, int unit, const Tensor& vector) const {
  const sharding::UnitState& of = state(unit);
  if (replicas(unit) == nullptr) return;
  const int ranks = of.plan().num_parts;
  const std::int64_t share = vector.numel / ranks;
  replicas(unit)->all_reduce(stream, of.name(), vector.part(of.own_part() * share, share));
  if (ranks > 1) group(unit).all_gather(stream, of.name(), vector);
}

void ReplicaLinks::sum_plainly(Stream& stream, int unit, const Tensor& part) const {
  if (replicas(unit) != nullptr) replicas(unit)->all_reduce(stream, state(unit).name(), part);
}

}  // namespace sherd::optim
