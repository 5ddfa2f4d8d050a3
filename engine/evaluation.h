/// The loss on the validation split, computed by all ranks together.
#pragma once

#include <cstdint>
#include <optional>

#include "engine/data/batcher.h"
#include "engine/sharded_model.h"
#include "engine/stop_request.h"
#include "sharding/exchange.h"

namespace sherd::engine {

struct EvaluationResult {
  double loss = 0.0;  ///< mean over `num_tokens`
  std::int64_t num_tokens = 0;
  /// nanoGPT's estimate beside it: 20 batches of windows that start anywhere in the split. Only
  /// where `loss` covers the whole split.
  std::optional<double> loss_20_batches;
  /// Some rank was asked to stop, so all ranks did, and the figures above mean nothing.
  StopRequest stop = StopRequest::kNone;
};

/// Everything that an Evaluation acquires: inputs, targets, and what it exchanges.
std::vector<BufferSpec> evaluation_buffers(const TrainingOptions& options, int world_size);

class Evaluation {
 public:
  Evaluation(const TrainingOptions& options, ShardedModel& model, const data::Batcher& batcher);

  /// The first `num_batches` global micro-batches of the split (0: all of it). A collective: every
  /// rank takes part and gets the same result. Before each pass the ranks agree to go on.
  EvaluationResult run(std::int64_t num_batches);

  /// Room for one micro-batch of tokens: [T] i32 each, in kEvaluation.
  const Buffer& inputs() const { return inputs_; }

 private:
  struct Mean {
    double loss = 0.0;
    std::int64_t num_tokens = 0;
  };
  /// Adds this rank's token losses; `fill` writes one micro-batch and says how many of its rows
  /// count.
  template <class Fill>
  Mean mean_loss(std::int64_t num_passes, const Fill& fill, StopRequest& stop);
  StopRequest agreed_stop();

  const TrainingOptions& options_;
  ShardedModel& model_;
  const data::Batcher& batcher_;
  Buffer inputs_, targets_;
  sharding::Exchange exchange_;
};

}  // namespace sherd::engine
