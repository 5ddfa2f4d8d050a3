/// The home of a GPU's state in the host's memory (core/offload_home.h): page-locked buffers, and a
/// stream of copies each way.
///
/// The GPU updates: blocks of state come to it through a ring (optim/state_ring.h), and go back when
/// they are updated, both next to the update of others. Copies take as long as the slower direction
/// of the link needs. Or the host's cores update (optim/host_update.h), and state stays here. The
/// bits are those of state that stays on the GPU.
#pragma once

#include <memory>

#include "core/memory_plan.h"
#include "core/offload_home.h"
#include "sharding/mesh/rank.h"

namespace sherd::engine {

/// `plan`: the buffers that it will hold. The rank has memory and streams, which outlive the home.
std::shared_ptr<OffloadHome> make_host_home(const MemoryPlan& plan, const sharding::Rank& rank);

}  // namespace sherd::engine
