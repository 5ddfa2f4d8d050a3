/// What the emulated GPU's program says it has loaded of NVIDIA's libraries: nothing, until a test says otherwise.
#pragma once

#include <vector>

#include "core/cuda_device.h"

namespace emulated {

extern std::vector<sherd::LoadedLibrary> libraries_found;

}  // namespace emulated
