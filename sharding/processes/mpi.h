/// Ranks in many processes, over MPI: Open MPI, which mpirun starts. Each process has one rank or more,
/// all equally many; a rank is a thread, and several ranks of a process call MPI at the same time.
///
/// Only nonblocking sends and receives between two ranks are used, on the stream's own thread, which
/// tests them and sleeps in between: MPI makes progress only in calls, and has no deadline. A message's
/// tag names the group and both ranks within their processes. Between ranks of one process messages are
/// copied without MPI (sharding/processes/thread_messages.h).
///
///   every collective  begins with each rank telling each other what it has called
///   all_gather        each slice goes straight to every other rank; or, if the processes' machines are given,
///                     to the ranks of its own machine and to one rank of each other, which passes it on there
///   reduce_scatter    each slice goes straight to its owner in pieces; the owner adds the pieces of
///                     rank 0, 1, ..., W-1 in f32 and rounds once: the bits of `threads`; or a
///                     machine's ranks are added first (sharding/processes/mpi_machine_sums.h)
///   all_reduce        reduce_scatter, then all_gather
///   broadcast         from the root to every other rank
///
/// Memory   pieces of others wait in `staging_bytes` of memory per rank (Group::staging). Others'
///          slices are received where they belong.
/// Cost     the bytes of a ring. A message is 64 MiB at most. Of a gather over M machines with m ranks each a
///          rank sends W - m slices to other machines, or, if they are passed on there, M - 1.
/// Wait     a rank that waits longer than the timeout without any progress names those it waited for.
/// Abort    travels over connections of our own (sharding/processes/control_links.h), as does the news that
///          a process has died. A collective that is interrupted leaves when no process touches the
///          buffers of another any more; or after two seconds if some process doesn't say so, and after
///          0.2 s if one has died.
#pragma once

#include <functional>
#include <string>

#include "sharding/processes/processes.h"

namespace sherd::sharding {

/// What a rank's communicators want for reductions in groups of `group_size` ranks: two pieces of every
/// other rank, 8 MiB or, in large groups, so much that a piece has 64 KiB.
std::int64_t mpi_staging_bytes(int group_size);

/// Begins MPI if it hasn't begun, and connects to the other processes. Every process calls it. May be
/// called again when all have left the world before.
///
/// MPI waits for ever for a process that doesn't come, a stopped one say. Where it does so for longer than `for_mpi`,
/// `late` is called, on another thread, with a sentence that says who it is, as far as can be known; "" where another
/// process of this machine says it. It should end the process.
/// Errors   UsageError: built without MPI. PeerError: another process doesn't come.
struct JoinCalls {
  std::chrono::milliseconds for_mpi{};
  std::function<void(const std::string& sentence)> late{};
  std::function<void()>
      connecting{};  ///< MPI has begun; from now on the others notice the end of this process
};
std::unique_ptr<Processes> join_mpi(std::chrono::milliseconds timeout, const JoinCalls& calls = {});

/// Ends MPI, if it has begun: when all processes have ended well. Waits for all of them.
void finish_mpi();

/// "Open MPI 4.1.4"; "" in a program built without MPI.
std::string mpi_library();

}  // namespace sherd::sharding
