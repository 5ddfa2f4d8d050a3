/// Processes with one rank and one GPU each, connected by NCCL (sharding/comm/nccl.h): rank r is process r. Ids
/// of groups, questions and aborts take the way between processes that is there already.
#pragma once

#include <chrono>
#include <memory>

#include "sharding/comm/rendezvous.h"
#include "sharding/processes/control_links.h"

namespace sherd::sharding {

/// Of this process, whose rank is on `device`. Once for `links`, which must outlive it, and whose on_abort is taken.
std::shared_ptr<Rendezvous> make_nccl_rendezvous(ControlLinks& links, int device,
                                                 std::chrono::milliseconds timeout);

}  // namespace sherd::sharding
