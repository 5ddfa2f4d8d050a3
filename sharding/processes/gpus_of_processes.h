/// Processes with one rank and one GPU each, connected by NCCL (sharding/comm/nccl.h): rank r is
/// process r. Group ids, questions and aborts use the existing connections between processes.
#pragma once

#include <chrono>
#include <memory>

#include "sharding/comm/rendezvous.h"
#include "sharding/processes/control_links.h"

namespace sherd::sharding {

/// For this process, whose rank is on `device`. Call it once for `links`, which must outlive the
/// result; it sets on_abort.
std::shared_ptr<Rendezvous> make_nccl_rendezvous(ControlLinks& links, int device,
                                                 std::chrono::milliseconds timeout);

}  // namespace sherd::sharding
