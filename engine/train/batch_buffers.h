/// The memory of one micro-batch: tokens, targets, and where documents lie, filled by the host and
/// read by kernels.
#pragma once

#include <string>
#include <vector>

#include "engine/data/batch.h"
#include "engine/train/layout/training_options.h"
#include "engine/train/training_step.h"
#include "sharding/mesh/mirrored_buffer.h"

namespace sherd::engine {

/// `{name}.inputs`, `{name}.targets`, and with separate documents `{name}.documents`.
std::vector<BufferSpec> batch_buffers(const std::string& name, const TrainingOptions& options,
                                      Phases phases);
/// The same for a training step: with a teacher also `{name}.teacher`, with multi-token prediction
/// `{name}.ahead`.
std::vector<BufferSpec> training_batch_buffers(const std::string& name,
                                               const TrainingOptions& options, Phases phases);

/// Which tokens of each row a rank computes: all of them, or its part along the context axis, which
/// is one run or two.
class OwnPositions {
 public:
  OwnPositions() = default;
  OwnPositions(const TrainingOptions& options, const sharding::Rank& rank);

  /// For a batch filled with whole rows: moves this rank's tokens of each row to the front, in host
  /// memory.
  void move_to_front(const data::Batch& batch) const;
  /// The batch with those tokens only.
  TokenBatch of(TokenBatch batch) const;
  /// Their positions in a row, in the order in which the rank has them.
  std::vector<std::int64_t> in_row() const;

 private:
  std::int64_t sequences_ = 1, seq_length_ = 0, degree_ = 1;
  std::vector<model::PositionRun> runs_;
};

/// The first `tokens` tokens of a batch, whose rows may be shorter than planned.
data::Batch first_tokens(data::Batch batch, std::int64_t tokens);
TokenBatch first_tokens(TokenBatch batch, std::int64_t tokens);

class BatchBuffers {
 public:
  BatchBuffers() = default;
  /// Acquires what batch_buffers lists.
  BatchBuffers(const sharding::Rank& rank, const std::vector<BufferSpec>& specs);

  const sharding::MirroredBuffer& inputs() const { return inputs_; }
  data::Batch host() const;
  TokenBatch device() const;
  void to_device(Stream& stream) const;

 private:
  sharding::MirroredBuffer inputs_, targets_, documents_, teacher_, ahead_;
};

}  // namespace sherd::engine
