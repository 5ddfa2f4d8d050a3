#include "optim/compressed_sum.h"

#include "optim/low_rank_sum.h"
#include "optim/matrices/dion_sum.h"
#include "optim/sparse_sum.h"
#include "sharding/mesh/process_groups.h"

namespace sherd::optim {
namespace {

constexpr const char* kLabel = "gradients";
constexpr std::int64_t kShareAlignment = 16;

FactorForm form_of(const Compression& options) {
  return options.dion.active() ? dion_form(options.dion) : low_rank_form(options.low_rank);
}

}  // namespace

Phases phases_of_sums(int num_micro_steps) {
  return num_micro_steps > 1 ? kForwardToBackward : kLoss | kBackward;
}

std::vector<BufferSpec> CompressedSum::buffers(const Compression& options,
                                               const sharding::ShardingPlan& plan,
                                               int num_micro_steps) {
  return options.sparse.active() ? sparse_buffers(options, plan, num_micro_steps)
                                 : factored_buffers(form_of(options), plan, num_micro_steps);
}

sharding::Traffic CompressedSum::traffic(const Compression& options,
                                         const sharding::ShardingPlan& plan) {
  return options.sparse.active() ? sparse_traffic(options, plan)
                                 : factored_traffic(form_of(options), plan);
}

std::vector<SumKind> CompressedSum::own_kinds(const Compression& options, const UnitSpec& unit,
                                              const ParameterSpec& parameter) {
  if (options.sparse.active()) {
    if (!is_sparse(parameter)) return {};
    std::vector<SumKind> kinds = {{kErrorKind, parameter.shape}};
    if (has_velocity(options.sparse)) kinds.push_back({kVelocityKind, parameter.shape});
    return kinds;
  }
  const FactorForm form = form_of(options);
  if (form.shapes(unit, parameter).empty()) return {};
  return {{form.kept_kind, parameter.shape}};
}

std::vector<SumKind> CompressedSum::shared_kinds(const Compression& options, const UnitSpec& unit,
                                                 const ParameterSpec& parameter) {
  if (options.sparse.active()) {
    if (is_sparse(parameter) || !has_velocity(options.sparse)) return {};
    return {{kVelocityKind, parameter.shape}};
  }
  const FactorForm form = form_of(options);
  if (form.shapes(unit, parameter).empty()) return {};
  return {{form.basis_kind, basis_shape(form, unit, parameter), true}};
}

std::int64_t CompressedSum::factored_numel(const Compression& options, const UnitSpec& unit,
                                           const ParameterSpec& parameter) {
  return optim::factored_numel(form_of(options), unit, parameter);
}

std::unique_ptr<CompressedSum> CompressedSum::make(const Compression& options,
                                                   const sharding::Rank& rank,
                                                   const std::vector<sharding::UnitState>& units,
                                                   int num_micro_steps) {
  if (options.sparse.active()) return make_sparse_sum(options, rank, units, num_micro_steps);
  if (options.dion.active()) return make_dion_sum(options, rank, units, num_micro_steps);
  return make_low_rank_sum(options.low_rank, rank, units, num_micro_steps);
}

ReplicaLinks::ReplicaLinks(const sharding::Rank& rank,
                           const std::vector<sharding::UnitState>& units)
    : units_(&units),
      replicas_(sharding::replica_communicators(rank, units)),
      tensor_degree_(rank.mesh.degree(sharding::kTensorAxis)),
      tensor_rank_(rank.mesh.coordinate(rank.rank, sharding::kTensorAxis)) {
  if (tensor_degree_ > 1) {
    tensor_ranks_ =
        &rank.groups->get({std::string(sharding::kTensorAxis)}, sharding::Purpose::kReduce);
  }
  for (const sharding::UnitState& unit : units) {
    SHERD_CHECK(!unit.plan().divides_parts() && !unit.plan().has_owners() &&
                    unit.precision().accumulate == DType::kF32,
                "a compressed sum of {}", unit.name());
    groups_.push_back(&rank.groups->get(unit.placement().group, sharding::Purpose::kReduce));
  }
}

std::int64_t ReplicaLinks::padded(const sharding::UnitPlan& unit, std::int64_t numel,
                                  int tensor_ranks) {
  const std::int64_t multiple = kShareAlignment * unit.num_parts * unit.num_replicas * tensor_ranks;
  return (numel + multiple - 1) / multiple * multiple;
}

void ReplicaLinks::add_gather_traffic(const sharding::UnitPlan& unit, sharding::Traffic& traffic) {
  if (unit.num_parts == 1) return;
  traffic.add("whole gradients", sharding::Collective::kAllGather, DType::kF32, unit.layout.numel(),
              unit.group());
}

void ReplicaLinks::add_sum_traffic(const sharding::UnitPlan& unit, std::int64_t padded,
                                   sharding::Traffic& traffic, int tensor_ranks) {
  if (unit.num_replicas == 1) return;
  const std::int64_t of_part = padded / unit.num_parts;
  traffic.add("compressed gradients", sharding::Collective::kAllReduce, DType::kF32,
              of_part / tensor_ranks, unit.replicas());
  if (tensor_ranks > 1) {
    traffic.add("compressed gradients", sharding::Collective::kAllGather, DType::kF32, of_part,
                {.count = tensor_ranks, .axes = {std::string(sharding::kTensorAxis)}});
  }
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

void ReplicaLinks::sum(Stream& stream, int unit, const Tensor& vector, bool shares_tensor) const {
  const sharding::UnitState& of = state(unit);
  if (replicas(unit) == nullptr) return;
  const int ranks = of.plan().num_parts, tensor = shares_tensor ? tensor_degree_ : 1;
  const std::int64_t part_numel = vector.numel / ranks, share = part_numel / tensor;
  const Tensor part = vector.part(of.own_part() * part_numel, part_numel);
  const std::int64_t first = tensor > 1 ? tensor_rank_ * share : 0;
  replicas(unit)->all_reduce(stream, of.name(), part.part(first, share));
  if (tensor > 1) tensor_ranks_->all_gather(stream, of.name(), part);
  if (ranks > 1) group(unit).all_gather(stream, of.name(), vector);
}

void ReplicaLinks::sum_plainly(Stream& stream, int unit, const Tensor& part) const {
  if (replicas(unit) != nullptr) replicas(unit)->all_reduce(stream, state(unit).name(), part);
}

}  // namespace sherd::optim
