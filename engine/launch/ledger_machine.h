/// A machine that simulates GPUs for one rank of a world: kernels and collectives are recorded in a
/// ledger (core/ledger.h), memory is reserved and never touched.
#pragma once

#include "core/ledger.h"
#include "engine/launch/machine.h"

namespace sherd::engine {

/// `ledger` must outlive it.
std::shared_ptr<const Machine> ledger_machine(int rank, const CudaStreamOptions& stream,
                                              Ledger& ledger);

}  // namespace sherd::engine
