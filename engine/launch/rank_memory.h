/// The memory of a rank, for its plan and its device.
#pragma once

#include <memory>

#include "core/arena.h"

namespace sherd::engine {

/// On the calling thread's current GPU.
std::unique_ptr<Arena> cuda_arena(MemoryPlan plan);
/// Page-locked host memory, for asynchronous copies to and from GPUs.
std::unique_ptr<Arena> pinned_arena(MemoryPlan plan);

}  // namespace sherd::engine
