/// Moments in 8 bits as an optimizer stores them (kernels/eight_bits.h): for each kind of moment a
/// second kind, its scales. Parameters and slices begin at multiples of 64 elements of the flat
/// buffer (sharding/zero/flat_layout.h), so no slice cuts a block.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "optim/optimizer.h"

namespace sherd::optim {

/// The kinds themselves; in 8 bits each is followed by its scales: "exp_avg", "exp_avg_scale".
std::vector<std::string> stored_kinds(const std::vector<std::string>& kinds,
                                      const MomentType& type);
std::string scales_of(const std::string& kind);

/// How a kind's numbers are stored.
struct MomentForm {
  DType dtype = DType::kF32;
  std::int64_t elements = 1;  ///< of the parameter, for each number: 64 for scales
};
MomentForm form_of(std::string_view kind, const MomentType& type);

/// Errors   UsageError if a rank's part of a parameter that is split over ranks cuts a block.
void check_blocks(const UnitSpec& unit);

}  // namespace sherd::optim
