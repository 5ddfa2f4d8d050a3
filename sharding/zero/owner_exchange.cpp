#include "sharding/zero/owner_exchange.h"

#include <algorithm>

#include "sharding/comm/communicator.h"
#include "sharding/comm/slices.h"
#include "sharding/mesh/process_groups.h"
#include "sharding/zero/reduction_rules.h"

namespace sherd::sharding {
namespace {

using Ranges = std::vector<ElementRange>;

KeyRange common(const KeyRange& a, const KeyRange& b) {
  const std::int64_t first = std::max(a.first, b.first);
  const std::int64_t end = std::min(a.first + a.count, b.first + b.count);
  return {first, std::max<std::int64_t>(end - first, 0)};
}

Ranges none(const Mesh& mesh) {
  return Ranges(static_cast<std::size_t>(mesh.world_size()));
}

// Of a buffer that begins with key `begin`.
ElementRange range_in(const KeyRange& keys, std::int64_t begin) {
  return keys.count == 0 ? ElementRange{} : ElementRange{keys.first - begin, keys.count};
}

// Those of what a rank keeps that a peer of the other kind has, too, in the rank's buffer.
Ranges shared_with_peers(const UnitPlan& unit, const Mesh& mesh, int rank) {
  Ranges ranges = none(mesh);
  const bool owns = mesh.is_owner(rank);
  const KeyRange own = owns ? keys_of_owner(unit, mesh, rank - mesh.num_workers())
                            : keys_of_worker(unit, mesh, rank);
  for (int peer = 0; peer < mesh.world_size(); ++peer) {
    if (mesh.is_owner(peer) == owns) continue;
    const KeyRange theirs = owns ? keys_of_worker(unit, mesh, peer)
                                 : keys_of_owner(unit, mesh, peer - mesh.num_workers());
    ranges[static_cast<std::size_t>(peer)] = range_in(common(own, theirs), own.first);
  }
  return ranges;
}

std::int64_t count_of(const Ranges& ranges) {
  std::int64_t count = 0;
  for (const ElementRange& range : ranges) count += range.count;
  return count;
}

Communicator* world_of(const Rank& rank, Purpose purpose) {
  return rank.mesh.num_owners() > 0 ? &rank.groups->world(purpose) : nullptr;
}

// All ranks state the size of what is sent; who sends nothing needs no memory of that size.
Tensor of_size(Tensor tensor, std::int64_t numel) {
  tensor.numel = numel;
  return tensor;
}

}  // namespace

KeyRange keys_of_owner(const UnitPlan& unit, const Mesh& mesh, int owner) {
  const std::int64_t count = unit.layout.numel() / mesh.num_owners();
  return {owner * count, count};
}

KeyRange keys_of_worker(const UnitPlan& unit, const Mesh& mesh, int worker) {
  if (!unit.placement.keeps_slices) return {0, unit.layout.numel()};
  const std::int64_t count = unit.layout.numel() / mesh.num_workers();
  return {worker * count, count};
}

std::optional<BufferSpec> pushed_buffer(const std::vector<UnitPlan>& units, const Mesh& mesh,
                                        int num_micro_steps) {
  std::int64_t most = 0;
  bool in_forward = false;  // a micro-step's pushes end under the next one's forward
  for (const UnitPlan& unit : units) {
    if (!unit.is_owners() || !unit.trains() || !unit.placement.has_gradients) continue;
    // In bytes of the widest type: units may have others.
    most = std::max(most, unit.part_numel() * mesh.num_workers() *
                              static_cast<std::int64_t>(size_of(unit.precision.reduce)));
    in_forward |= num_micro_steps > 1 && !at_boundary(unit);
  }
  if (most == 0) return std::nullopt;
  return BufferSpec{"gradient.pushed", Category::kUnreducedGradients, DType::kU8, most,
                    in_forward ? kForwardToBackward : kLoss | kBackward};
}

Traffic push_traffic(const std::vector<UnitPlan>& units, const Mesh& mesh, int rank, int pushes) {
  Traffic traffic;
  for (const UnitPlan& unit : units) {
    if (!unit.trains()) continue;
    traffic.add_elements("gradients", Collective::kAllToAllV, unit.precision.reduce,
                         mesh.is_owner(rank) ? 0 : unit.layout.numel(),
                         group_along(mesh, mesh.all_axes()), at_boundary(unit) ? 1 : pushes);
  }
  return traffic;
}

Traffic pull_traffic(const std::vector<UnitPlan>& units, const Mesh& mesh, int rank) {
  Traffic traffic;
  for (const UnitPlan& unit : units) {
    if (!unit.trains()) continue;
    const std::int64_t sent =
        mesh.is_owner(rank) ? count_of(shared_with_peers(unit, mesh, rank)) : 0;
    traffic.add_elements("parameters", Collective::kAllToAllV, unit.precision.parameters, sent,
                         group_along(mesh, mesh.all_axes()), 1);
  }
  return traffic;
}

OwnerPush::OwnerPush(const Rank& rank, const std::vector<UnitState>& units, int num_micro_steps)
    : rank_(&rank),
      units_(&units),
      world_(world_of(rank, Purpose::kReduce)),
      pushed_(rank.acquire(pushed_buffer(plans_of(units), rank.mesh, num_micro_steps))) {}

void OwnerPush::push(Stream& stream, int unit, const Tensor& full, const Tensor& sum,
                     bool onto_sum) {
  const UnitState& state = (*units_)[static_cast<std::size_t>(unit)];
  const UnitPlan& plan = state.plan();
  const Mesh& mesh = rank_->mesh;
  const std::int64_t numel = plan.layout.numel(), slice = numel / mesh.num_owners();
  Ranges sends = none(mesh), receives = none(mesh);
  if (plan.is_workers()) {
    for (int owner = 0; owner < mesh.num_owners(); ++owner) {
      sends[static_cast<std::size_t>(mesh.num_workers() + owner)] =
          range_in(keys_of_owner(plan, mesh, owner), 0);
    }
    return world_->all_to_all_v(stream, state.name(), full, sends, full, receives);
  }
  Tensor pushed = pushed_.tensor();
  pushed = {pushed.data, plan.precision.reduce, mesh.num_workers() * slice};
  for (int worker = 0; worker < mesh.num_workers(); ++worker) {
    receives[static_cast<std::size_t>(worker)] = {worker * slice, slice};
  }
  world_->all_to_all_v(stream, state.name(), of_size(pushed, numel), sends, pushed, receives);
  stream.run("add " + state.name(), [pushed, slice, sum, onto_sum] {
    std::vector<ConstTensor> inputs;
    for (std::int64_t first = 0; first < pushed.numel; first += slice) {
      inputs.emplace_back(pushed.part(first, slice));
    }
    add_up_on_host(inputs, sum, {.onto_out = onto_sum});
  });
}

OwnerPull::OwnerPull(const Rank& rank, const std::vector<UnitState>& units)
    : rank_(&rank), units_(&units), world_(world_of(rank, Purpose::kGather)) {}

void OwnerPull::pull(Stream& stream, int unit, const Tensor& own) {
  const UnitState& state = (*units_)[static_cast<std::size_t>(unit)];
  const Mesh& mesh = rank_->mesh;
  const Ranges shared = shared_with_peers(state.plan(), mesh, rank_->rank);
  const Tensor from = of_size(own, state.layout().numel() / mesh.num_owners());
  if (state.plan().is_owners()) {
    return world_->all_to_all_v(stream, state.name(), from, shared, own, none(mesh));
  }
  world_->all_to_all_v(stream, state.name(), from, none(mesh), own, shared);
}

}  // namespace sherd::sharding
