/// Prepares a rank's next micro-batch in advance: a thread fills one buffer while the rank computes
/// on the other.
#pragma once

#include <array>
#include <condition_variable>
#include <cstdint>
#include <exception>
#include <functional>
#include <mutex>
#include <thread>

#include "engine/data/batch.h"

namespace sherd::data {

/// Writes a micro-batch into `batch`. Usually `Batcher::fill` for one rank.
using FillBatch =
    std::function<void(std::int64_t step, std::int64_t micro_step, const Batch& batch)>;

class BatchPrefetcher {
 public:
  /// The thread starts at once with micro-step 0 of `first_step`. The caller owns `buffers`. They
  /// must outlive this object, and nothing else may write to them.
  BatchPrefetcher(FillBatch fill, std::int64_t first_step, std::int64_t num_micro_steps,
                  std::array<Batch, 2> buffers);
  /// Waits only for the micro-batch being filled.
  ~BatchPrefetcher();
  BatchPrefetcher(const BatchPrefetcher&) = delete;
  BatchPrefetcher& operator=(const BatchPrefetcher&) = delete;

  /// The next micro-batch in order: step, micro-step 0, 1, ..., then the next step. It stays valid
  /// until the next call, so all reads of it must have finished by then.
  /// Errors   rethrows what `fill` threw for a micro-batch, for that one and all later ones.
  Batch next();
  /// Whether next() would return at once.
  bool has_next();

 private:
  void work();

  const FillBatch fill_;
  const std::int64_t first_step_;
  const std::int64_t num_micro_steps_;
  const std::array<Batch, 2> buffers_;

  std::mutex mutex_;
  std::condition_variable changed_;
  std::int64_t num_filled_ = 0;    ///< batches that became ready
  std::int64_t num_given_ = 0;     ///< batches handed out
  std::int64_t num_released_ = 0;  ///< batches no longer read; their buffers are free
  bool stop_ = false;
  std::exception_ptr error_;
  std::thread thread_;
};

}  // namespace sherd::data
