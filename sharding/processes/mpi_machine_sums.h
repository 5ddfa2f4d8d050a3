/// A reduce-scatter that adds up what the ranks of a machine have before it crosses to another one
/// (`parallelism.sum_order: free`).
///
///   relay   of each owner elsewhere, one rank of this machine: it receives the slice's pieces from its neighbours,
///           adds them and its own in rank order, in f32, and sends the sum to the owner, as f32
///   owner   adds what its own neighbours bring in the same way, and then the machines' sums, one machine after the
///           other, and rounds once
///
/// Of groups with as many members on each machine, and of sums of all ranks. Relays are those of gathers
/// (machine_relays.h).
///
/// Order    all ranks go through the pieces of slices together. Of a piece a rank adds what its neighbours bring and
///          sends the sums that it relays; while these cross, it ends the piece before. So nobody waits for somebody who
///          waits for it.
/// Sent     by each rank as many slices as directly; of W ranks on M machines of m ranks each, M - 1 of them, in f32,
///          leave the machine instead of W - m.
/// Memory   of `staging` (Group::staging) all of it.
#pragma once

#include <functional>

#include "sharding/comm/communicator.h"
#include "sharding/comm/machine_relays.h"
#include "sharding/processes/mpi_transfers.h"

namespace sherd::sharding {

struct MachineSum {
  Tensor full, out;  ///< as Communicator::reduce_scatter
  bool onto_out = false;
  int rank = 0;  ///< in the group
  Tensor staging;
};

/// `new_transfers` makes what messages go through, `finish` waits for it.
void sum_by_machines(const MachineSum& sum, const MachineRelays& relays,
                     const std::function<std::unique_ptr<MpiTransfers>()>& new_transfers,
                     const std::function<void(MpiTransfers&)>& finish);

}  // namespace sherd::sharding
