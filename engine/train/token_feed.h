/// Provides a rank's micro-batches. A thread reads ahead. If the device has its own memory, batches
/// are copied there, overlapping the computation.
///
///   read     | 2 |     | 3 |        by data::BatchPrefetcher, into host memory
///   copy        | 1 |     | 2 |     on a stream of its own
///   compute    |   0   |   1   |
///
/// There are two batches on each side. A host batch is free once it has been copied, a device batch
/// once its micro-step has been computed.
#pragma once

#include <array>
#include <optional>

#include "engine/data/batcher.h"
#include "engine/data/prefetcher.h"
#include "engine/train/batch_buffers.h"

namespace sherd::engine {

/// The two micro-batches that are filled alternately.
std::vector<BufferSpec> batch_buffers(const TrainingOptions& options);

class TokenFeed {
 public:
  TokenFeed(const TrainingOptions& options, const sharding::Rank& rank, data::FillBatch fill);

  /// Starts reading at the first micro-step of `step`.
  void start(std::int64_t step);
  /// The micro-batches in order from `start` on; valid on the compute stream until the next call. A
  /// step that is replayed before the run stops asks for its batches again. They are then rebuilt,
  /// and reading ahead ends.
  /// Errors   those of reading a batch, when that batch is requested
  TokenBatch next(std::int64_t step, std::int64_t micro_step);

 private:
  /// One of the two places for a batch.
  struct Place {
    BatchBuffers batch;
    std::unique_ptr<Event> copied, computed;
  };
  const Place& place_of(std::int64_t number) const {
    return places_[static_cast<std::size_t>((number - first_) % 2)];
  }
  void bring(std::int64_t number);
  TokenBatch tokens(std::int64_t step, std::int64_t micro_step);
  TokenBatch make_anew(std::int64_t step, std::int64_t micro_step);

  const sharding::Rank& rank_;
  const std::int64_t num_micro_steps_;
  const data::BatchShape shape_;
  const OwnPositions positions_;
  const data::FillBatch fill_;
  std::array<Place, 2> places_;
  std::optional<data::BatchPrefetcher> prefetcher_;
  std::int64_t first_ = 0;    ///< the first batch that is read ahead
  std::int64_t next_ = 0;     ///< the next batch to return
  std::int64_t brought_ = 0;  ///< batches before this one are being copied or on the device
  std::unique_ptr<Stream> copies_;
};

}  // namespace sherd::engine
