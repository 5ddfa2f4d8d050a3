#include "engine/schedule/validate.h"

#include "core/error.h"
#include "engine/schedule/deadlock.h"
#include "engine/schedule/rank_rules.h"

namespace sherd::schedule {

std::optional<Violation> first_violation(const Schedule& schedule, const Rules& rules) {
  SHERD_CHECK(std::ssize(schedule.ranks) == schedule.layout.num_ranks, "{} lists for {} ranks",
              schedule.ranks.size(), schedule.layout.num_ranks);
  for (int rank = 0; rank < schedule.layout.num_ranks; ++rank) {
    if (auto violation = rank_violation(schedule, rank, rules)) return violation;
  }
  return deadlock(schedule, rules.channels);
}

}  // namespace sherd::schedule
