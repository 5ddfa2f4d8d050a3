#pragma once

#include <cstdint>
#include <span>
#include <string>

namespace sherd {

std::string shape_text(std::span<const std::int64_t> shape);  ///< "[2, 3]"

}  // namespace sherd
