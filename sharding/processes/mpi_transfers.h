/// Messages of one collective between one rank and its peers, all in flight at the same time.
///
/// MPI may write to a buffer until its request is complete. So no rank leaves a collective before
/// that. If a rank is interrupted, it cancels receives that no message has matched yet, and waits
/// for the others as long as that is useful.
#pragma once

#include <mpi.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "core/link_bytes.h"
#include "sharding/processes/control_links.h"
#include "sharding/processes/thread_messages.h"

namespace sherd::sharding {

/// Bytes that a rank has sent, counted when a message begins. Any thread may read it.
class LinkMeter {
 public:
  void add(bool crosses, std::int64_t bytes) { (crosses ? across_ : within_) += bytes; }
  LinkBytes sent() const { return {within_, across_}; }

 private:
  std::atomic<std::int64_t> within_ = 0, across_ = 0;
};

/// What the communicators of a process share.
class MpiWorld : public std::enable_shared_from_this<MpiWorld> {
 public:
  MpiWorld(MPI_Comm comm, ControlLinks& links, int ranks_per_process,
           std::chrono::milliseconds timeout);
  ~MpiWorld();
  MpiWorld(const MpiWorld&) = delete;
  MpiWorld& operator=(const MpiWorld&) = delete;

  MPI_Comm comm() const { return comm_; }
  ControlLinks& links() const { return links_; }
  int ranks_per_process() const { return ranks_per_process_; }
  std::chrono::milliseconds timeout() const { return timeout_; }
  /// Messages between this process's ranks.
  ThreadMessages& thread_messages() { return thread_messages_; }
  /// The meter of this process's rank `place`.
  LinkMeter& meter_of(int place) { return meters_[static_cast<std::size_t>(place)]; }

  /// Calls `quiet_if_idle` when the world is aborted.
  void watch_aborts();
  void throw_if_aborted() const;

  /// A collective of a rank, from its first message to its last.
  class Collective {
   public:
    /// Errors   PeerError if the world was aborted.
    explicit Collective(MpiWorld& world);
    /// After an abort: returns when no process has a collective under way.
    ~Collective();
    Collective(const Collective&) = delete;
    Collective& operator=(const Collective&) = delete;

   private:
    MpiWorld& world_;
  };

 private:
  void quiet_if_idle();

  const MPI_Comm comm_;
  ControlLinks& links_;
  const int ranks_per_process_;
  const std::chrono::milliseconds timeout_;
  const std::string quiet_word_;
  ThreadMessages thread_messages_;
  std::vector<LinkMeter> meters_;
  std::mutex mutex_;
  int under_way_ = 0;
  bool quiet_ = false;  // this process has reported that it no longer touches buffers
};

/// The route between a rank and one of its peers.
struct MpiRoute {
  int process = 0;              ///< the peer's process
  bool crosses = false;         ///< whether it leads to another machine
  bool within_process = false;  ///< without MPI
  int send_tag = 0, receive_tag = 0;
};

class MpiTransfers {
 public:
  /// `routes[p]` leads to member p of the group. `meter` counts sent bytes, unless null.
  MpiTransfers(MpiWorld& world, const std::vector<MpiRoute>& routes, LinkMeter* meter)
      : world_(world), routes_(routes), meter_(meter) {}
  /// Gives up incomplete messages.
  ~MpiTransfers();
  MpiTransfers(const MpiTransfers&) = delete;
  MpiTransfers& operator=(const MpiTransfers&) = delete;

  /// If two processes exchange large messages, both send before they receive. A receive that finds
  /// its message announced requests it on the connection that carries this rank's own messages. If
  /// the peer requests first, all our data goes ahead of our request, and the two directions take
  /// turns.
  void send(int peer, const void* data, std::int64_t bytes);
  void receive(int peer, void* data, std::int64_t bytes);

  /// Returns when all are complete. After the world's timeout without any progress, `overdue` makes
  /// the abort reason from the missing peers.
  /// Errors   PeerError: the world was aborted.
  void wait(const std::function<std::string(const std::vector<int>& peers)>& overdue);

 private:
  void add(MPI_Request request, int peer, bool receiving);
  bool test();
  bool test_mpi();
  bool test_here();
  bool any_open() const { return num_open_ > 0 || !sent_here_.empty() || !expected_here_.empty(); }
  std::vector<int> missing() const;

  MpiWorld& world_;
  const std::vector<MpiRoute>& routes_;
  LinkMeter* const meter_;
  std::vector<MPI_Request> requests_;
  std::vector<int> peers_;       // peer of each request
  std::vector<char> receiving_;  // whether each request is a receive
  std::vector<int> completed_;
  struct HereSent {
    std::shared_ptr<ThreadMessages::Message> message;
    int peer = 0;
  };
  struct HereExpected {
    ThreadMessages::Receive receive;
    int peer = 0;
  };
  std::vector<HereSent> sent_here_;          // to ranks of this process, not yet copied
  std::vector<HereExpected> expected_here_;  // from ranks of this process
  int num_open_ = 0;                         // open MPI requests
};

}  // namespace sherd::sharding
