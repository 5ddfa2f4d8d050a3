/// Kinds of moments whose numbers aren't one for each element of a parameter.
#pragma once

#include <string_view>
#include <vector>

#include "optim/optimizer.h"

namespace sherd::optim {

/// Whether every rank has all numbers of a kind: Adafactor's, of rows and columns, and Dion's basis.
bool is_factor(std::string_view kind);

/// The shape of a kind's numbers for a whole parameter. Adafactor's: [R] and [C]. Dion's basis:
/// [vectors of all its matrices, C]. Scales of 8 bits: [.., C / 64] if blocks end with the rows,
/// otherwise [number of blocks].
std::vector<std::int64_t> shape_of_kind(std::string_view kind, const OptimizerOptions& options,
                                        const ParameterSpec& parameter);

}  // namespace sherd::optim
