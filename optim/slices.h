/// The slices of all units that one rank updates, with what an update needs to know of each.
#pragma once

#include <vector>

#include "kernels/update.h"
#include "optim/optimizer.h"

namespace sherd::optim {

/// One slice: where its parameters and gradient are, and how its segments decay.
struct UpdatedSlice {
  int owner = 0;
  Tensor parameter;  ///< f32
  Tensor gradient;
  std::int64_t first_element = 0;  ///< of this slice in the rank's moments of the unit
  std::vector<kernels::UpdateSegment> segments;
};

/// By unit: the slices that this rank updates.
std::vector<std::vector<UpdatedSlice>> updated_slices(
    const std::vector<sharding::UnitState>& units, const WeightDecay& decay);

/// By unit: an f32 buffer as large as the slices that this rank updates, for one kind of moment.
std::vector<Buffer> acquire_moments(const sharding::Rank& rank,
                                    const std::vector<sharding::UnitState>& units,
                                    const std::string& name);

}  // namespace sherd::optim
