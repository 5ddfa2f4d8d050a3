/// What shows whether a training is stable, found in its steps: the output's z-loss or other further
/// losses, and the largest attention score of every head.
///
/// The first is an exact sum over tokens, the second a maximum over queries: both are the same
/// however a step's micro-batches are dealt to ranks and micro-steps.
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "core/exact_sum.h"
#include "engine/train/layout/training_options.h"
#include "sharding/mesh/exchange.h"

namespace sherd::engine {

struct StabilityReport {
  /// ModelShape::z_loss times the mean of the squared log-sum-exp of a token's logits, over the
  /// tokens with a target: what the step's gradient has in addition to the loss. None without it.
  std::optional<double> z_loss{};
  /// With a teacher: the mean of the divergence (kernels/teacher.h) over the same tokens.
  std::optional<double> teacher_divergence{};
  /// With multi-token prediction: the mean of its layers' losses, each over its own targets.
  std::optional<double> mtp_loss{};
  /// [L, H], of all heads: the step's largest attention score, scaled and before the soft cap
  /// (kernels/attention.h, `maxima`); -infinity: no query saw a key. Empty without
  /// ModelShape::max_attention_logit.
  std::vector<std::vector<float>> max_logits{};

  struct Largest {
    std::int64_t layer = 0, head = 0;  ///< the first with this value
    float value = 0.0f;
  };
  Largest largest_logit() const;  ///< of max_logits
};

class StabilityStatistics {
 public:
  /// Nothing for a training without them.
  static std::vector<BufferSpec> buffers(const TrainingOptions& options, int world_size);
  static sharding::Traffic traffic(const TrainingOptions& options, const sharding::Mesh& mesh);

  StabilityStatistics(const TrainingOptions& options, const sharding::Rank& rank);

  bool active() const { return exchange_.has_value(); }
  /// A step begins: forgets the largest scores.
  void begin();
  /// For Pass::attention_maxima.
  Tensor maxima() const { return maxima_ ? maxima_->device() : Tensor{}; }
  /// Over all ranks. A collective, at the end of the step; null and nothing unless active.
  /// Of ModelShape::num_further_losses: the sums over this rank's tokens, and the step's targets.
  std::shared_ptr<const StabilityReport> combine(std::span<const ExactSum> loss_sums,
                                                 std::span<const std::int64_t> num_targets);

 private:
  std::vector<double> own_numbers(std::span<const ExactSum> loss_sums);

  const TrainingOptions& options_;
  const sharding::Rank& rank_;
  std::optional<sharding::MirroredBuffer> maxima_;
  std::optional<sharding::Exchange> exchange_;
};

}  // namespace sherd::engine
