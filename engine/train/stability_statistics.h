/// What shows whether a training is stable, found in its steps: the output's z-loss.
///
/// Numbers are exact sums over tokens: they are the same however a step's micro-batches are dealt to
/// ranks and micro-steps.
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "core/exact_sum.h"
#include "engine/train/layout/training_options.h"
#include "sharding/mesh/exchange.h"

namespace sherd::engine {

struct StabilityReport {
  /// ModelShape::z_loss times the mean of the squared log-sum-exp of a token's logits, over the
  /// tokens with a target: what the step's gradient has in addition to the loss. None without it.
  std::optional<double> z_loss{};
};

class StabilityStatistics {
 public:
  /// Nothing for a training without them.
  static std::vector<BufferSpec> buffers(const TrainingOptions& options, int world_size);
  static sharding::Traffic traffic(const TrainingOptions& options, const sharding::Mesh& mesh);

  StabilityStatistics(const TrainingOptions& options, const sharding::Rank& rank);

  bool active() const { return exchange_.has_value(); }
  /// Over all ranks. A collective, at the end of the step; null and nothing unless active.
  /// `z_loss_sum`: of this rank's tokens.
  std::shared_ptr<const StabilityReport> combine(const ExactSum& z_loss_sum,
                                                 std::int64_t num_targets);

 private:
  const TrainingOptions& options_;
  const sharding::Rank& rank_;
  std::optional<sharding::Exchange> exchange_;
};

}  // namespace sherd::engine
