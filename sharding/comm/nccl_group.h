/// The members of one group over NCCL: ranks that are threads of this process, with a GPU each. They
/// come, call and leave together.
///
/// Communicators are blocking, and connect to all peers when they are made (NCCL_RUNTIME_CONNECT=0).
/// So a call only enqueues its work: it starts no thread, and the host waits for nobody in it.
///
/// Deadline  whoever doesn't come to `enter` in time is named; a connection that isn't made in time is
///           given up; `trouble` finds collectives that have waited too long, and what NCCL's own
///           threads have found out. Somebody asks it now and then (sharding/comm/nccl.cpp).
/// Abort     says the reason first, under a lock that nobody holds while waiting, and then ends each
///           member's communicator on a thread of its own: NCCL wants all of them ended at once. A
///           call that hangs inside NCCL is left through the abort itself.
/// Leaving   waits until all members leave, or somebody aborts; then each ends its communicator.
#pragma once

#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "sharding/comm/meeting_place.h"
#include "sharding/comm/nccl_calls.h"

struct ncclComm;

namespace sherd::sharding {

class NcclGroup : public std::enable_shared_from_this<NcclGroup> {
 public:
  /// Member m is rank ranks[m] of the world, on devices[m].
  NcclGroup(std::string name, std::vector<int> ranks, std::vector<int> devices,
            std::chrono::milliseconds timeout);
  ~NcclGroup();
  NcclGroup(const NcclGroup&) = delete;
  NcclGroup& operator=(const NcclGroup&) = delete;

  int size() const { return static_cast<int>(members_.size()); }

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

  /// Why the group must be aborted: a collective that has waited too long, an error of NCCL's; or "".
  std::string trouble();

 private:
  struct Member {
    int rank = 0, device = 0;
    std::timed_mutex calling;          // held in NCCL's calls
    ncclComm* communicator = nullptr;  // guarded by mutex_, used under `calling`
    bool connected = false;            // or failed to
    std::string error;
  };

  void connect(int member);
  void make_communicator(Member& member, int index);
  /// Null once the group is aborted or left.
  ncclComm* communicator_of(const Member& member);
  std::string error_of(Member& member);
  void throw_if_aborted();
  void end_by_force(Member& member, ncclComm* communicator);

  const std::string name_;
  const std::chrono::milliseconds timeout_;
  MeetingPlace meeting_;
  NcclCalls calls_;
  std::vector<Member> members_;
  std::mutex mutex_;  // nobody waits under it but for changed_
  std::condition_variable changed_;
  std::vector<char> id_;
  int num_left_ = 0;
  std::string reason_;
  std::vector<std::thread> aborting_;
};

}  // namespace sherd::sharding
