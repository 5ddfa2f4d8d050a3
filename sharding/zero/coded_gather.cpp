#include "sharding/zero/coded_gather.h"

#include <algorithm>

#include "sharding/comm/communicator.h"

namespace sherd::sharding {

WireLayout gather_layout(const UnitPlan& unit) {
  return {unit.spec, unit.layout, unit.precision.gather_blocks, unit.num_parts};
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
    SHERD_CHECK(!unit.plan().divides_parts(), "replicas gather {} in blocks", unit.name());
    layouts_.back() = gather_layout(unit.plan());
  }
  bytes_ = rank.acquire(coded_gather_buffer(plans_of(units)));
}

void CodedGather::gather(Stream& stream, Communicator& communicator, int unit, const Tensor& own,
                         const Tensor& full) {
  const UnitState& state = (*units_)[unit];
  const WireLayout& layout = *layouts_[unit];
  const Tensor bytes = bytes_.tensor().part(0, layout.bytes());
  const auto bytes_of = [&](int slice) {
    return bytes.part(slice * layout.piece_bytes(), layout.piece_bytes());
  };
  layout.encode(stream, state.own_slice(), own, bytes_of(state.own_slice()));
  communicator.all_gather(stream, state.name(), bytes);
  for (int slice = 0; slice < layout.num_pieces(); ++slice) {
    layout.sum(stream, slice, bytes_of(slice), 1, state.layout().slice(full, slice), false);
  }
}

void CodedGather::round(Stream& stream, int unit, int slice, const Tensor& fp32,
                        const Tensor& out) {
  layouts_[unit]->round(stream, slice, fp32, out);
}

}  // namespace sherd::sharding
