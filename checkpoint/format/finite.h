/// The search for NaNs and infinities in stored values: made of every block before it is written,
/// and again of every block that is read, since a file may come from anywhere.
#pragma once

#include <cstdint>
#include <string_view>

#include "core/dtype.h"

namespace sherd::checkpoint {

/// The first element of `bytes` (whole elements, f32 or bf16) that is a NaN or an infinity; -1: none.
/// Cost   one pass at the speed of memory.
std::int64_t first_not_finite(std::string_view bytes, DType dtype);

}  // namespace sherd::checkpoint
