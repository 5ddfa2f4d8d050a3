#include "engine/launch/rank_memory.h"

#include "core/cuda_device.h"

namespace sherd::engine {

std::unique_ptr<Arena> cuda_arena(MemoryPlan plan) {
  auto memory = cuda_arena_memory(plan.arena_bytes());
  return std::make_unique<Arena>(std::move(plan), std::move(memory));
}

std::unique_ptr<Arena> pinned_arena(MemoryPlan plan) {
  auto memory = pinned_arena_memory(plan.arena_bytes());
  return std::make_unique<Arena>(std::move(plan), std::move(memory));
}

}  // namespace sherd::engine
