/// Transfers in a ring of context ranks (engine/model/attention/ring.h), which overlap the
/// computation.
///
///   rank r     from ──── link r ────▶ to     rank r + 1 (mod C)
///
/// Each link is a communicator of two ranks, with a stream at each end, like a pipeline's channels.
/// A rank's sends and receives run at the same time, and neither waits for the compute stream once
/// it has begun.
///
/// Threads  if calls block until all ranks have made them (Communicator::calls_meet), each end
///          makes its calls on its own thread. A rank's thread waits for such a call when it needs
///          its event, and before the next one.
/// Order    calls of a link are in the order of the ranks' calls, which is the same everywhere. A
///          receive begins when the rank's earlier sends have left, so that it may be written where
///          they were read.
/// Errors   PeerError if another rank stopped, from `await_passed` or `await_sent`.
#pragma once

#include <chrono>
#include <deque>
#include <functional>
#include <memory>
#include <vector>

#include "sharding/comm/communicator.h"
#include "sharding/mesh/rank.h"

namespace sherd::engine {

/// The world ranks next to a rank in its ring.
struct RingNeighbours {
  int next = 0, previous = 0;
};
RingNeighbours ring_neighbours(const sharding::Mesh& mesh, int rank);

class Ring {
 public:
  /// For the rank's context group, which has several ranks.
  explicit Ring(const sharding::Rank& rank);
  ~Ring();

  /// As in model::Collectives.
  void pass_on(const char* what, const Tensor& from, const Tensor& to);
  void await_passed();
  void await_sent();

  /// Processor time of the streams' threads, in total.
  std::chrono::nanoseconds cpu_time() const;

 private:
  struct Caller;
  void make_caller(Caller& caller, const char* name, int rank);
  void call(Caller& caller, const std::function<void()>& calls);
  void wait_for_calls(const Caller& caller);
  void send(const char* what, const Tensor& from);

  Stream& compute_;
  RingNeighbours neighbours_;
  // In ascending order: members leave a communicator together, as they join it.
  std::vector<std::unique_ptr<sharding::Communicator>> links_;
  sharding::Communicator *to_next_ = nullptr, *from_previous_ = nullptr;
  std::unique_ptr<Event> ready_, sent_;
  std::deque<std::unique_ptr<Event>> under_way_, spare_;  // arrivals not awaited yet
  std::unique_ptr<Stream> out_, in_;
  // If calls meet: the threads that make them, and their progress.
  struct Caller {
    std::unique_ptr<Event> called;
    std::unique_ptr<Stream> thread;  // destroyed first
  };
  Caller sends_, receives_;
  std::unique_ptr<Stream> own_thread_;  // the rank's thread, which waits for the others
};

}  // namespace sherd::engine
