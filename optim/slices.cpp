#include "optim/slices.h"

#include <fnmatch.h>

namespace sherd::optim {

float WeightDecay::rate_of(const ParameterSpec& parameter) const {
  if (parameter.shape.size() < 2) return 0.0f;
  for (const std::string& pattern : no_decay) {
    if (fnmatch(pattern.c_str(), parameter.name.c_str(), 0) == 0) return 0.0f;
  }
  return rate;
}

std::vector<std::vector<UpdatedSlice>> updated_slices(
    const std::vector<sharding::UnitState>& units, const WeightDecay& decay) {
  std::vector<std::vector<UpdatedSlice>> slices;
  for (const sharding::UnitState& unit : units) {
    std::vector<UpdatedSlice>& of_unit = slices.emplace_back();
    for (const int owner : unit.updated_slices()) {
      UpdatedSlice slice{owner, unit.master(owner), unit.gradient(owner),
                         static_cast<std::int64_t>(of_unit.size()) * unit.layout().slice_numel(),
                         {}};
      for (const sharding::Piece& piece : unit.layout().pieces(owner)) {
        slice.segments.push_back(
            {piece.position, piece.count, decay.rate_of(unit.spec().parameters[piece.parameter])});
      }
      of_unit.push_back(std::move(slice));
    }
  }
  return slices;
}

std::vector<Buffer> acquire_moments(const sharding::Rank& rank,
                                    const std::vector<sharding::UnitState>& units,
                                    const std::string& name) {
  std::vector<Buffer> buffers;
  for (const sharding::UnitState& unit : units) {
    const auto num_slices = static_cast<std::int64_t>(unit.updated_slices().size());
    buffers.push_back(rank.memory->acquire({unit.name() + "." + name, Category::kOptimizer,
                                            DType::kF32,
                                            num_slices * unit.layout().slice_numel()}));
  }
  return buffers;
}

}  // namespace sherd::optim
