#include "sharding/zero/coded_reduction.h"

#include <algorithm>

#include "sharding/zero/reduction_rules.h"

namespace sherd::sharding {

WireLayout reduction_layout(const UnitPlan& unit) {
  return {unit.spec, unit.layout, unit.precision.reduce_blocks, unit.num_parts};
}

WireLayout replica_layout(const UnitPlan& unit) {
  return {unit.spec, unit.layout, unit.precision.replica_blocks,
          unit.num_parts * unit.num_replicas};
}

std::vector<BufferSpec> coded_reduction_buffers(const std::vector<UnitPlan>& units,
                                                int num_micro_steps) {
  std::int64_t sent = 0, received = 0;
  bool in_forward = false;  // a micro-step's reductions end under the next one's forward
  for (const UnitPlan& unit : units) {
    if (!unit.trains() || !unit.placement.has_gradients) continue;
    if (unit.reduces_blocks()) {
      const std::int64_t of_group = reduction_layout(unit).bytes();
      sent = std::max(sent, of_group);
      if (unit.num_parts > 1) received = std::max(received, of_group);
      in_forward |= num_micro_steps > 1 && !at_boundary(unit);
    }
    if (unit.num_replicas == 1 || !unit.adds_replicas_in_blocks()) continue;
    const std::int64_t of_replicas = replica_layout(unit).piece_bytes() * unit.num_replicas;
    sent = std::max(sent, of_replicas);
    received = std::max(received, of_replicas);
  }
  std::vector<BufferSpec> buffers;
  const auto add = [&](const char* name, std::int64_t bytes) {
    if (bytes == 0) return;
    buffers.push_back({name, Category::kUnreducedGradients, DType::kU8, bytes,
                       in_forward ? kForwardToBackward : kLoss | kBackward});
  };
  add("gradient.sent", sent);
  add("gradient.received", received);
  return buffers;
}

CodedReduction::CodedReduction(const Rank& rank, const std::vector<UnitState>& units,
                               int num_micro_steps)
    : units_(&units) {
  for (const UnitState& unit : units) {
    Layouts& layouts = layouts_.emplace_back();
    const UnitPlan& plan = unit.plan();
    if (!plan.trains() || (!plan.reduces_blocks() && !plan.adds_replicas_in_blocks())) continue;
    SHERD_CHECK(plan.tree_of_ranks == 1, "trees of {} in blocks", unit.name());
    if (plan.reduces_blocks()) {
      SHERD_CHECK(plan.precision.reduce == DType::kF32, "blocks of {} from {}", unit.name(),
                  name_of(plan.precision.reduce));
      layouts.group = reduction_layout(plan);
    }
    if (!plan.adds_replicas_in_blocks()) continue;
    layouts.replicas = replica_layout(plan);
    layouts.parts =
        WireLayout(plan.spec, plan.layout, plan.precision.replica_blocks, plan.num_parts);
  }
  const std::vector<BufferSpec> buffers = coded_reduction_buffers(plans_of(units), num_micro_steps);
  if (!buffers.empty()) sent_ = rank.acquire(buffers[0]);
  if (buffers.size() > 1) received_ = rank.acquire(buffers[1]);
}

// What `ranks` ranks have sent of this rank's piece, in their order. A rank alone sends nothing.
Tensor CodedReduction::received(int ranks, std::int64_t bytes) const {
  return (ranks > 1 ? received_ : sent_).tensor().part(0, ranks * bytes);
}

void CodedReduction::send(Stream& stream, Communicator& communicator, int unit,
                          const WireLayout& layout, int first_piece, const Tensor& elements) {
  const int ranks = communicator.world_size();
  const std::int64_t bytes = layout.piece_bytes(), numel = layout.piece_numel();
  const Tensor sent = sent_.tensor().part(0, ranks * bytes);
  for (int rank = 0; rank < ranks; ++rank) {
    layout.encode(stream, first_piece + rank, elements.part(rank * numel, numel),
                  sent.part(rank * bytes, bytes));
  }
  if (ranks == 1) return;
  communicator.all_to_all(stream, (*units_)[unit].name(), sent, received(ranks, bytes));
}

void CodedReduction::exchange(Stream& stream, Communicator& communicator, int unit,
                              const Tensor& full) {
  send(stream, communicator, unit, *layouts_[unit].group, 0, full);
}

void CodedReduction::add(Stream& stream, int unit, const Tensor& out, const Addends& addends) {
  const UnitState& state = (*units_)[unit];
  const WireLayout& layout = *layouts_[unit].group;
  const int ranks = state.plan().num_parts;
  const int count = addends.num_ranks == 0 ? ranks : addends.num_ranks;
  const std::int64_t bytes = layout.piece_bytes();
  layout.sum(stream, state.own_part(),
             received(ranks, bytes).part(addends.first_rank * bytes, count * bytes), count, out,
             addends.onto_out);
}

void CodedReduction::add_replicas(Stream& stream, Communicator& communicator, int unit,
                                  const Tensor& part) {
  const UnitState& state = (*units_)[unit];
  const WireLayout& layout = *layouts_[unit].replicas;
  const int replicas = communicator.world_size();
  const int first_piece = state.own_part() * replicas;
  send(stream, communicator, unit, layout, first_piece, part);
  const std::int64_t numel = layout.piece_numel();
  layout.sum(stream, first_piece + communicator.rank(), received(replicas, layout.piece_bytes()),
             replicas, part.part(communicator.rank() * numel, numel), false);
}

void CodedReduction::round(Stream& stream, int unit, const Tensor& part) {
  layouts_[unit].parts->round(stream, (*units_)[unit].own_part(), part, part);
}

}  // namespace sherd::sharding
