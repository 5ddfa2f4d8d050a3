/// A group of one rank: every collective is the identity.
#pragma once

#include <memory>

#include "sharding/comm/rendezvous.h"

namespace sherd::sharding {

std::unique_ptr<Communicator> make_single_communicator();

/// For a world of one rank, on any device.
std::shared_ptr<Rendezvous> make_single_rendezvous();

}  // namespace sherd::sharding
