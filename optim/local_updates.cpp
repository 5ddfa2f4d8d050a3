#include "optim/local_updates.h"

#include "core/error.h"

namespace sherd::optim {

std::optional<int> LocalUpdates::applied(std::int64_t steps_done) const {
  if (!active() || steps_done <= 0 || steps_done % period() != 0) return std::nullopt;
  return static_cast<int>((steps_done / period() - 1) % num_fragments);
}

std::optional<int> LocalUpdates::sent(std::int64_t steps_done) const {
  if (!active() || steps_done <= 0) return std::nullopt;
  return applied(steps_done + fragment_sync_delay);
}

bool LocalUpdates::all_equal(std::int64_t steps_done) const {
  if (!active() || steps_done == 0) return true;
  return num_fragments == 1 && fragment_sync_delay == 0 && fragment_update_alpha == 0.0 &&
         steps_done % sync_every == 0;
}

int LocalUpdates::fragment_of(int index, int num_units) const {
  SHERD_CHECK(index >= 0 && index < num_units, "unit {} of {}", index, num_units);
  return static_cast<int>(index * num_fragments / num_units);
}

}  // namespace sherd::optim
