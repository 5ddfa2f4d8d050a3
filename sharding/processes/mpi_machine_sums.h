/// A reduce-scatter that first adds the contributions of a machine's ranks, and then sends the sums
/// to other machines (`parallelism.sum_order: free`).
///
///   relay   a rank of this machine, one for each owner on another machine. It receives the slice's
///           pieces from its neighbours. It adds them and its own in rank order, in f32, and sends
///           the sum to the owner, as f32.
///   owner   adds its own neighbours' pieces in the same way. It then adds the machines' sums, one
///           machine after another, and rounds once.
///
/// Only for groups with equally many members on each machine, and for sums of all ranks. Relays are
/// the same as in gathers (machine_relays.h).
///
/// Order    all ranks process the pieces of slices together. For each piece, a rank adds its
///          neighbours' contributions and sends the sums that it relays. While these are under way,
///          it finishes the previous piece. So no two ranks wait for each other.
/// Sent     each rank sends as many slices as without relays. With W ranks on M machines of m ranks
///          each, M - 1 of them, in f32, leave the machine instead of W - m.
/// Memory   all of `staging` (Group::staging).
#pragma once

#include <functional>

#include "sharding/comm/communicator.h"
#include "sharding/comm/machine_relays.h"
#include "sharding/processes/mpi_transfers.h"

namespace sherd::sharding {

struct MachineSum {
  Tensor full, out;  ///< as Communicator::reduce_scatter
  bool onto_out = false;
  int rank = 0;  ///< index in the group
  Tensor staging;
};

/// `new_transfers` makes the object that carries messages; `finish` waits for it.
void sum_by_machines(const MachineSum& sum, const MachineRelays& relays,
                     const std::function<std::unique_ptr<MpiTransfers>()>& new_transfers,
                     const std::function<void(MpiTransfers&)>& finish);

}  // namespace sherd::sharding
