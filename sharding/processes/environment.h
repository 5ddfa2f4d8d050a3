/// The processes of a world that were not started by MPI, and that find one another through the
/// environment variables that torchrun sets:
///
///   RANK, WORLD_SIZE          of the processes
///   LOCAL_RANK                among the processes on this machine
///   MASTER_ADDR, MASTER_PORT  where process 0 listens for the others. If torchrun itself listens
///                             there (TORCHELASTIC_USE_AGENT_STORE=True), the next port is used.
///   SHERD_PORT                another port, if set
///   SHERD_SECRET              the same for all: connections without it are refused. Optional if
///                             MASTER_ADDR is localhost. The default is then the user's number,
///                             which other users of the machine can know.
///
/// Each process has one rank and its own GPU: NCCL carries the tensors. Ranks on CPUs need MPI
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

/// What the environment says; empty if it doesn't describe several processes.
/// Errors   UsageError: a variable is missing or invalid.
std::optional<EnvironmentWorld> environment_world();

/// Process 0 listens on the port; the others connect as soon as it does.
/// Errors   UsageError: MASTER_ADDR is no host. PeerError: the port is taken, or another process
///          doesn't connect.
std::unique_ptr<Processes> join_environment(const EnvironmentWorld& world,
                                            std::chrono::milliseconds timeout);

}  // namespace sherd::sharding
