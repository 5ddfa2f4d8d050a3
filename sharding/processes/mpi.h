/// Ranks in many processes, over MPI: Open MPI, started by mpirun. All processes have equally many
/// ranks, one or more. A rank is a thread, and several ranks of a process call MPI at the same
/// time.
///
/// It uses only nonblocking sends and receives between two ranks, on the stream's own thread. That
/// thread tests them and sleeps in between, because MPI makes progress only in calls and has no
/// deadline. A message's tag names the group and both ranks within their processes. Between ranks
/// of one process, messages are copied without MPI (sharding/processes/thread_messages.h).
///
///   every collective  begins with each rank telling every other what it has called
///   all_gather        each slice goes straight to every other rank. If the processes' machines are
///                     given, it goes to the ranks of its own machine and to one rank of each other
///                     machine, which forwards it there.
///   reduce_scatter    each slice goes straight to its owner in pieces. The owner adds the pieces
///                     of rank 0, 1, ..., W-1 in f32 and rounds once; the result is bit-identical
///                     to `threads`. Or the ranks of a machine are added first
///                     (sharding/processes/mpi_machine_sums.h).
///   all_reduce        reduce_scatter, then all_gather
///   broadcast         from the root to every other rank
///
/// Memory   pieces of others wait in `staging_bytes` of memory per rank (Group::staging). Others'
///          slices are received directly into their final place.
/// Cost     the bytes of a ring. A message has at most 64 MiB. In a gather over M machines with m
///          ranks each, a rank sends W - m slices to other machines, or M - 1 if they are forwarded
///          there.
/// Wait     a rank that waits longer than the timeout without any progress names the ranks it
///          waited for.
/// Abort    travels over connections of our own (sharding/processes/control_links.h), as does the
///          news that a process has died. An interrupted collective returns when no process
///          accesses another's buffers any more. It also returns after two seconds if some process
///          doesn't confirm that, and after 0.2 s if one has died.
#pragma once

#include <functional>
#include <string>

#include "sharding/processes/processes.h"

namespace sherd::sharding {

/// Staging memory that a rank's communicators need for reductions in groups of `group_size` ranks:
/// two pieces of every other rank. The total is 8 MiB or, in large groups, enough for pieces of 64
/// KiB.
std::int64_t mpi_staging_bytes(int group_size);

/// Begins MPI if it hasn't begun, and connects to the other processes. Every process calls it. It
/// may be called again when all have left the previous world.
///
/// MPI waits forever for a process that doesn't come, for example a stopped one. If it waits longer
/// than `for_mpi`, `late` is called on another thread. Its argument is a sentence that names the
/// process, as far as it can be known; "" if another process of this machine reports it. `late`
/// should end the process.
/// Errors   UsageError: built without MPI. PeerError: another process doesn't come.
struct JoinCalls {
  std::chrono::milliseconds for_mpi{};
  std::function<void(const std::string& sentence)> late{};
  std::function<void()>
      connecting{};  ///< MPI has begun; from now on the others notice if this process ends
};
std::unique_ptr<Processes> join_mpi(std::chrono::milliseconds timeout, const JoinCalls& calls = {});

/// Ends MPI, if it has begun: call it when all processes have ended well. Waits for all of them.
void finish_mpi();

/// "Open MPI 4.1.4"; "" in a program built without MPI.
std::string mpi_library();

}  // namespace sherd::sharding
