/// The search for NaNs and infinities in stored values. It checks every block before it is written,
/// and every block that is read, since a file may come from anywhere.
#pragma once

#include <cstdint>
#include <string_view>

#include "core/dtype.h"

namespace sherd::checkpoint {

/// Index of the first NaN or infinity in `bytes` (whole elements, f32 or bf16; u8 has none); -1: none.
/// Cost   one pass at the speed of memory.
std::int64_t first_not_finite(std::string_view bytes, DType dtype);

}  // namespace sherd::checkpoint
