/// A world of one rank: every collective is the identity.
#pragma once

#include <memory>

#include "sharding/comm/communicator.h"

namespace sherd::sharding {

std::unique_ptr<Communicator> make_single_communicator();

}  // namespace sherd::sharding
