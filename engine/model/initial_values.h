/// The values that a model's parameters start with.
#pragma once

#include "core/box.h"
#include "core/parameter.h"
#include "core/stream.h"
#include "core/tensor.h"

namespace sherd::model {

/// out[i] = the initial value of element first + i of a rank's part of `parameter`: the boxes
/// `held` of a tensor with `columns` columns. A value depends only on the seed, the parameter and
/// the element's position in the whole tensor, so every world starts with the same weights.
///
/// Types    out is f32, in the stream's device memory.
void fill_initial_values(Stream& stream, std::uint64_t seed, const ParameterSpec& parameter,
                         const std::vector<Box>& held, std::int64_t columns, std::int64_t first,
                         Tensor out);

/// The single box of an uncut parameter.
std::vector<Box> whole_box(const ParameterSpec& parameter);

}  // namespace sherd::model
