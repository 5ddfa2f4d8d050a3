/// Exchanges among the ranks that divide a layer's experts, on a stream of their own: they begin
/// when the work enqueued so far is done, and overlap what follows (engine/model/collectives.h).
#pragma once

#include <chrono>
#include <memory>
#include <vector>

#include "core/stream.h"
#include "sharding/comm/communicator.h"
#include "sharding/mesh/rank.h"

namespace sherd::engine {

class RowExchange {
 public:
  explicit RowExchange(const sharding::Rank& rank);

  void gather(const char* what, const Tensor& x);
  void exchange(const char* what, const Tensor& from, const std::vector<ElementRange>& sends,
                const Tensor& to, const std::vector<ElementRange>& receives);
  /// The compute stream waits for all calls so far.
  void await();

  std::chrono::nanoseconds cpu_time() const { return stream_->cpu_time(); }

 private:
  void begin();

  Stream& compute_;
  sharding::Communicator& ranks_;
  std::unique_ptr<Event> ready_, arrived_;
  std::unique_ptr<Stream> stream_;  // last: it is destroyed first, and ends
};

}  // namespace sherd::engine
