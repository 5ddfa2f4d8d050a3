#include "sharding/zero/coded_gather.h"

#include <algorithm>

#include "sharding/comm/communicator.h"

namespace sherd::sharding {

WireLayout gather_layout(const UnitPlan& unit) {
  return {unit.spec, unit.layout, unit.precision.gather_blocks, unit.layout.num_slices()};
}

std::optional<BufferSpec> coded_gather_buffer(const std::vector<UnitPlan>& units) {
  std::int64_t bytes = 0;
  bool resident = false;  // published while the next step begins
  for (const UnitPlan& unit : units) {
    if (!unit.gathers_blocks() || !unit.trains() || !unit.placement.optimizer_sharded()) continue;
    bytes = std::max(bytes, gather_layout(unit).bytes());
    resident |= !unit.placement.parameters_sharded();
  }
  if (bytes == 0) return std::nullopt;
  return BufferSpec{"gather.coded", Category::kGatheredParameters, DType::kU8, bytes,
                    resident ? Phases(kAlways) : kForwardToBackward | kEvaluation};
}

CodedGather::CodedGather(const Rank& rank, const std::vector<UnitState>& units) : units_(&units) {
  for (const UnitState& unit : units) {
    layouts_.emplace_back();
    if (!unit.plan().gathers_blocks() || !unit.trains()) continue;
    layouts_.back() = gather_layout(unit.plan());
  }
  bytes_ = rank.acquire(coded_gather_buffer(plans_of(units)));
}

Tensor CodedGather::all_bytes(int unit) const {
  return bytes_.tensor().part(0, layouts_[unit]->bytes());
}

Tensor CodedGather::part_of(int unit, const Tensor& all_bytes) const {
  const UnitState& state = (*units_)[unit];
  const std::int64_t bytes = state.plan().slices_per_part() * layouts_[unit]->piece_bytes();
  return all_bytes.part(state.own_part() * bytes, bytes);
}

Tensor CodedGather::own_part(int unit) const {
  const Tensor resident = (*units_)[unit].coded_part();
  return resident ? resident : part_of(unit, all_bytes(unit));
}

void CodedGather::encode(Stream& stream, int unit, const Tensor& own) {
  const UnitState& state = (*units_)[unit];
  const WireLayout& layout = *layouts_[unit];
  const std::int64_t place = state.own_slice() % state.plan().slices_per_part();
  layout.encode(stream, state.own_slice(), own,
                own_part(unit).part(place * layout.piece_bytes(), layout.piece_bytes()));
}

void CodedGather::exchange(Stream& stream, Communicator& replicas, int unit) {
  replicas.all_gather(stream, (*units_)[unit].name(), own_part(unit));
}

void CodedGather::gather(Stream& stream, Communicator& group, int unit, const Tensor& full) {
  const UnitState& state = (*units_)[unit];
  const WireLayout& layout = *layouts_[unit];
  const Tensor bytes = all_bytes(unit), part = part_of(unit, bytes);
  const Tensor own = own_part(unit);
  if (own.data != part.data) stream.copy(own.data, part.data, part.bytes());
  group.all_gather(stream, state.name(), bytes);
  for (int slice = 0; slice < layout.num_pieces(); ++slice) {
    layout.sum(stream, slice, bytes.part(slice * layout.piece_bytes(), layout.piece_bytes()), 1,
               state.layout().slice(full, slice), false);
  }
}

void CodedGather::round(Stream& stream, int unit, int slice, const Tensor& fp32,
                        const Tensor& out) {
  layouts_[unit]->round(stream, slice, fp32, out);
}

}  // namespace sherd::sharding
