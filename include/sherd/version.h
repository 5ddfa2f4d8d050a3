/// The version of the library that runs, such as "0.1.0": what `sherd info` prints.
#pragma once

#include <string>

#include "sherd/export.h"

namespace sherd::SHERD_ABI {

SHERD_API std::string version();

}  // namespace sherd::SHERD_ABI
