/// The memory of one micro-batch: tokens, targets, and where documents lie, filled by the host and read
/// by kernels.
#pragma once

#include <string>
#include <vector>

#include "engine/data/batch.h"
#include "engine/train/training_options.h"
#include "engine/train/training_step.h"
#include "sharding/mesh/mirrored_buffer.h"

namespace sherd::engine {

/// `{name}.inputs`, `{name}.targets`, and with separate documents `{name}.documents`.
std::vector<BufferSpec> batch_buffers(const std::string& name, const TrainingOptions& options,
                                      Phases phases);

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
  sharding::MirroredBuffer inputs_, targets_, documents_;
};

}  // namespace sherd::engine
