// Weights next to those that a step updates: their average, and the global weights of replicas that
// train apart.

#include "engine/train/training_step.h"

namespace sherd::engine {

// By the number of steps alone, whether or not they were applied: so all replicas agree.
void TrainingStep::synchronise_replicas(std::int64_t steps_done) {
  const std::optional<int> sent = options_.local_updates.sent(steps_done);
  const std::optional<int> applied = options_.local_updates.applied(steps_done);
  if (!sent && !applied) return;
  if (before_update) before_update();
  TraceSpan span(rank_.compute(), "local updates");
  if (sent) outer_->send(*sent);
  if (!applied) return;
  outer_->apply(*applied);
  for (int unit = 0; unit < std::ssize(model_.units()); ++unit) {
    if (outer_->has(*applied, unit)) model_.publish(unit);
  }
}

void TrainingStep::exchange_average() {
  SHERD_CHECK(average_, "no average is kept");
  if (before_update) before_update();
  for (std::size_t unit = 0; unit < model_.units().size(); ++unit) {
    average_->exchange(rank_.compute(), static_cast<int>(unit));
    model_.publish(static_cast<int>(unit));
  }
}

void TrainingStep::begin_average() {
  if (average_) average_->begin(rank_.compute());
  if (outer_) outer_->begin();
}

void TrainingStep::exchange_global_weights() {
  if (!outer_) return;
  if (before_update) before_update();
  outer_->settle();
  for (int unit = 0; unit < std::ssize(model_.units()); ++unit) {
    outer_->exchange(unit);
    model_.publish(unit);
  }
}

void TrainingStep::settle() {
  if (!outer_) return;
  outer_->settle();
  rank_.compute().synchronize();
}

}  // namespace sherd::engine
