/// A machine on which one rank of a world takes its steps on GPUs that aren't there: kernels and collectives are noted
/// in a ledger (core/ledger.h), memory is reserved and never touched.
#pragma once

#include "core/ledger.h"
#include "engine/launch/machine.h"

namespace sherd::engine {

/// `ledger` outlives it.
std::shared_ptr<const Machine> ledger_machine(int rank, const CudaStreamOptions& stream,
                                              Ledger& ledger);

}  // namespace sherd::engine
