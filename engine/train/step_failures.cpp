// What a training step does where something is wrong: the gradient overflows, the loss isn't
// finite, or copies of the weights differ.

#include <algorithm>
#include <array>
#include <bit>

#include "engine/train/step_checks.h"
#include "engine/train/training_step.h"

namespace sherd::engine {

// The statistics' exchange carries the hashes, so they need no memory of their own.
void TrainingStep::compare_weights(std::int64_t step) {
  constexpr int kCount = sharding::Agreement<RankStats>::kCount;
  using Numbers = std::array<double, kCount>;
  checks_->weights.run(step, kCount, [this](std::span<const double> mine) {
    Numbers numbers;
    std::ranges::copy(mine, numbers.begin());
    std::vector<std::vector<double>> rows;
    for (const RankStats& row :
         stats_.all_gather("weight hashes", std::bit_cast<RankStats>(numbers))) {
      const auto of_rank = std::bit_cast<Numbers>(row);
      rows.emplace_back(of_rank.begin(), of_rank.end());
    }
    return rows;
  });
}

// Parameters, moments and Adam's step count stay as they are. Every rank is here, since all have
// the same statistics. Weights that aren't finite give such gradients at any scale: that is no
// overflow.
void TrainingStep::skip(StepResult& result) {
  Diagnosis diagnosis(model_, checks_->reports);
  if (const std::string where = diagnosis.non_finite_weight(); !where.empty()) {
    throw TrainingError(
        "the weights aren't finite, so no loss scale helps: {}. Resume from an older checkpoint, "
        "with a lower optimizer.lr or gradient_clipping.max_norm.",
        where);
  }
  diagnosis.look_at_slices();
  result.skipped = true;
  result.overflow = diagnosis.where();
  scaler_.skipped_step();
}

void TrainingStep::explain_non_finite(std::int64_t step, const NextBatch& next_batch,
                                      const StepStats& stats) {
  Diagnosis diagnosis(model_, checks_->reports);
  diagnosis.look_at_slices();
  diagnosis.watch_gradients();
  accumulate_gradients(step, next_batch);
  diagnosis.stop_watching(model_.step_loss_sum().value());
  throw TrainingError("{}", diagnosis.explain(step, stats.loss, stats.norm));
}

}  // namespace sherd::engine
