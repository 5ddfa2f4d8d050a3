/// Groups of which one rank alone exists, on streams that keep a ledger (core/ledger.h): a collective is a note, and
/// what it would have brought stays as it was.
#pragma once

#include <memory>

#include "sharding/comm/rendezvous.h"

namespace sherd::sharding {

std::shared_ptr<Rendezvous> make_ledger_rendezvous();

}  // namespace sherd::sharding
