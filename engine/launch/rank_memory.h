/// The memory of a rank as its plan and its device want it.
#pragma once

#include <memory>

#include "core/arena.h"

namespace sherd::engine {

/// On the GPU that the calling thread talks to.
std::unique_ptr<Arena> cuda_arena(MemoryPlan plan);
/// Page-locked host memory, which GPUs copy from and to without a stop.
std::unique_ptr<Arena> pinned_arena(MemoryPlan plan);

}  // namespace sherd::engine
