/// What routers decided in a training step, added up over micro-steps and ranks.
///
/// Counts are integers: they are the same however the step's micro-batches are dealt to ranks and
/// micro-steps. Losses are sums of f32 numbers in f64.
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "engine/train/layout/training_options.h"
#include "sharding/mesh/exchange.h"

namespace sherd::engine {

struct ExpertReport {
  struct Layer {
    std::int64_t layer = 0;
    std::vector<std::int64_t> counts;  ///< tokens that chose each expert
  };
  std::vector<Layer> layers;  ///< those that have experts
  /// Means over micro-batches (or sequences, if they are the losses' scope), added up over layers,
  /// with their coefficients: what the step's loss has in addition.
  double balance_loss = 0.0, z_loss = 0.0;
};

class ExpertStatistics {
 public:
  /// Nothing for a model without experts.
  static std::vector<BufferSpec> buffers(const TrainingOptions& options, int world_size);
  static sharding::Traffic traffic(const TrainingOptions& options, const sharding::Mesh& mesh);

  ExpertStatistics(const TrainingOptions& options, const sharding::Rank& rank);

  /// A step begins: forgets what was counted.
  void begin();
  /// For Pass::expert_totals.
  Tensor totals() const { return totals_ ? totals_->device() : Tensor{}; }
  /// Adds up over all ranks. A collective, at the end of the step; null and nothing for a model
  /// without experts.
  std::shared_ptr<const ExpertReport> add_up();

  /// After the optimizer's update of a unit: its router's bias, if it has one, moves towards
  /// balance (MoeShape::bias_update_rate). The optimizer has left it as it was, since it has no
  /// gradient.
  void correct_router(const sharding::UnitState& unit, const ExpertReport& report) const;
  /// For Pass::previous_counts: what the last step with an update counted, if losses need it; else
  /// empty.
  ConstTensor previous() const;
  /// The same as numbers, for checkpoints: [L, E + 1], each expert's count and then the tokens.
  const std::vector<std::int64_t>& previous_counts() const { return previous_counts_; }
  /// Errors   DataError: numbers of another model.
  void set_previous(std::vector<std::int64_t> counts);
  void set_previous(const ExpertReport& report);

 private:
  const TrainingOptions& options_;
  const sharding::Rank& rank_;
  std::optional<sharding::MirroredBuffer> totals_;
  std::optional<sharding::Exchange> exchange_;
  std::optional<sharding::MirroredBuffer> previous_;  // if losses count the previous step's choices
  std::vector<std::int64_t> previous_counts_;
};

}  // namespace sherd::engine
