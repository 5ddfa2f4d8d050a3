/// Groups of which only one rank exists, on streams that keep a ledger (core/ledger.h). A
/// collective is only recorded, and its output stays unchanged.
#pragma once

#include <memory>

#include "sharding/comm/rendezvous.h"

namespace sherd::sharding {

std::shared_ptr<Rendezvous> make_ledger_rendezvous();

}  // namespace sherd::sharding
