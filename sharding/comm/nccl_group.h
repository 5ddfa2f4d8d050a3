/// Those members of one group over NCCL that are threads of this process, with a GPU each. They come, call and
/// leave together; members in other processes do the same there.
///
/// Communicators are blocking, and connect to all peers when they are made (NCCL_RUNTIME_CONNECT=0).
/// So a call only enqueues its work: it starts no thread, and the host doesn't wait.
///
/// Id        the process of the group's first member makes it, and sends it to the others.
/// Deadline  whoever doesn't come to `enter` in time is named; a connection that isn't made in time is
///           given up; `trouble` finds collectives that have waited too long, and what NCCL's own
///           threads have found out. Somebody asks it now and then (sharding/comm/nccl.cpp). Where members
///           are in other processes, these are asked where they stand (sharding/comm/nccl_peers.h).
/// Abort     says the reason first, under a lock that is never held while waiting, and then ends each
///           member's communicator on a thread of its own: NCCL wants all of them ended at once. A
///           call that hangs inside NCCL is left through the abort itself.
/// Leaving   waits until all members leave, in other processes too, or one aborts; then each ends its
///           communicator.
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
  /// Member m is rank ranks[m] of the world. At least one is `here`. `processes`: null if all are.
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

  /// Why the group must be aborted: a collective that has waited too long, an error of NCCL's; or "". While others
  /// are asked where they stand `meanwhile` is called now and then.
  std::string trouble(const std::function<void()>& meanwhile);
  /// Tells other processes where this one's members stand, if they ask. By the thread that asks for trouble.
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
  std::vector<Member> members_;  // those that are here
  std::mutex mutex_;             // nobody waits under it but for changed_
  std::condition_variable changed_;
  std::vector<char> id_;
  int num_left_ = 0;            // of those that are here
  bool all_have_left_ = false;  // in other processes too
  std::string reason_;
  std::vector<std::thread> aborting_;
};

}  // namespace sherd::sharding
