/// The members of one NCCL group that are threads of this process, with a GPU each. They join, call
/// and leave together; members in other processes do the same there.
///
/// Communicators are blocking, and connect to all peers when created (NCCL_RUNTIME_CONNECT=0). So a
/// call only enqueues its work: it starts no thread, and the host doesn't wait.
///
/// Id        the process of the group's first member creates it and sends it to the others.
/// Deadline  members that don't reach `enter` in time are named. A connection that isn't made in
///           time is given up. `trouble` finds collectives that have waited too long, and errors
///           that NCCL's own threads found. It is called at intervals (sharding/comm/nccl.cpp). If
///           members are in other processes, it asks those where they are
///           (sharding/comm/nccl_peers.h).
/// Abort     sets the reason first, under a lock that is never held while waiting. It then aborts
///           each member's communicator on a separate thread: NCCL requires aborting all of them at
///           once. The abort itself releases a call that hangs inside NCCL.
/// Leaving   waits until all members leave, in other processes too, or one aborts; then each ends
///           its communicator.
#pragma once

#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "sharding/comm/meeting_place.h"
#include "sharding/comm/nccl.h"
#include "sharding/comm/nccl_calls.h"
#include "sharding/comm/nccl_peers.h"

struct ncclComm;

namespace sherd::sharding {

class NcclGroup : public std::enable_shared_from_this<NcclGroup> {
 public:
  /// Member m is world rank ranks[m]. At least one is in this process (`here`). `processes`: null
  /// if all are.
  NcclGroup(std::string name, std::vector<int> ranks, const NcclRanks& here,
            std::chrono::milliseconds timeout, NcclProcesses* processes);
  ~NcclGroup();
  NcclGroup(const NcclGroup&) = delete;
  NcclGroup& operator=(const NcclGroup&) = delete;

  int size() const { return static_cast<int>(ranks_.size()); }

  /// Blocks until all members are here and connected.
  void enter(int member);
  /// Enqueues one collective with NCCL; `enqueue` returns NCCL's result.
  void run(int member, const Contribution& call, CUstream_st* stream,
           const std::function<int(ncclComm*)>& enqueue);
  /// PeerError if the group was aborted or NCCL has found an error since.
  void check_alive(int member);
  void abort(const std::string& reason);
  /// The streams of this member are idle.
  void leave(int member) noexcept;

  /// Why the group must be aborted: a collective that has waited too long, or an NCCL error;
  /// otherwise "". `meanwhile` is called at intervals while others are asked where they are.
  std::string trouble(const std::function<void()>& meanwhile);
  /// Answers other processes that ask where this one's members are. For the thread that calls
  /// `trouble`.
  void answer();

 private:
  struct Member {
    int index = 0, rank = 0, device = 0;  // index: in the group
    std::timed_mutex calling;             // held in NCCL's calls
    ncclComm* communicator = nullptr;     // guarded by mutex_, used under `calling`
    bool connected = false;               // or failed to
    std::string error;
  };

  int place_of(int index) const;  // in members_
  void learn_id(const Member& first);
  void connect(Member& member);
  void make_communicator(Member& member);
  std::string trouble_elsewhere(const NcclCalls::Overdue& overdue,
                                const std::function<void()>& meanwhile);
  std::string reason();
  /// Null once the group is aborted or left.
  ncclComm* communicator_of(const Member& member);
  std::string error_of(Member& member);
  void throw_if_aborted();
  void end_by_force(Member& member, ncclComm* communicator);

  const std::string name_;
  const std::vector<int> ranks_;  // of all members
  const std::chrono::milliseconds timeout_;
  NcclProcesses* const processes_;
  NcclPeers peers_;
  MeetingPlace meeting_;
  NcclCalls calls_;
  std::vector<Member> members_;  // those in this process
  std::mutex mutex_;             // only waits for changed_ happen under it
  std::condition_variable changed_;
  std::vector<char> id_;
  int num_left_ = 0;            // of those in this process
  bool all_have_left_ = false;  // in other processes too
  std::string reason_;
  std::vector<std::thread> aborting_;
};

}  // namespace sherd::sharding
