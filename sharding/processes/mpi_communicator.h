/// The communicator of ranks in several processes (see mpi.h), for code that has MPI's headers.
#pragma once

#include <mpi.h>

#include <chrono>
#include <memory>
#include <vector>

#include "sharding/comm/rendezvous.h"
#include "sharding/processes/control_links.h"
#include "sharding/processes/processes.h"

namespace sherd::sharding {

/// For ranks_per_process ranks in each process of `comm`. `links` must outlive it.
std::shared_ptr<Rendezvous> make_mpi_rendezvous(MPI_Comm comm, ControlLinks& links,
                                                int ranks_per_process,
                                                std::chrono::milliseconds timeout,
                                                const MachinesOfProcesses& machines);

}  // namespace sherd::sharding
