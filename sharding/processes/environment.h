/// The processes of a world that something other than MPI has started, and that know one another by the
/// environment, in the variables that torchrun sets:
///
///   RANK, WORLD_SIZE          of the processes
///   LOCAL_RANK                of those on this machine
///   MASTER_ADDR, MASTER_PORT  where process 0 listens for the others. torchrun itself listens there
///                             (TORCHELASTIC_USE_AGENT_STORE=True says so): then it is the next port
///   SHERD_PORT                another port, if set
///   SHERD_SECRET              the same for all: connections without it are refused. Optional if
///                             MASTER_ADDR is localhost: then it is the user's number, which other users of
///                             the machine can know.
///
/// Each process has one rank, on a GPU of its own: NCCL carries the tensors. Ranks on CPUs need MPI
/// (sharding/processes/mpi.h).
#pragma once

#include <optional>

#include "sharding/processes/processes.h"

namespace sherd::sharding {

struct EnvironmentWorld {
  int process = 0, num_processes = 1, local_process = 0;
  std::string host{};
  int port = 0;
  std::string secret{};
  bool loopback = false;
};

/// What the environment says; nothing where it doesn't speak of several processes.
/// Errors   UsageError: a variable is missing, or isn't what it should be.
std::optional<EnvironmentWorld> environment_world();

/// Process 0 listens on the port, the others come as soon as it does.
/// Errors   UsageError: MASTER_ADDR is no host. PeerError: the port is taken, or another process doesn't come.
std::unique_ptr<Processes> join_environment(const EnvironmentWorld& world,
                                            std::chrono::milliseconds timeout);

}  // namespace sherd::sharding
