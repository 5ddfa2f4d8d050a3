/// The rules of validate.h that one rank's list can break by itself.
#pragma once

#include "engine/schedule/validate.h"

namespace sherd::schedule {

std::optional<Violation> rank_violation(const Schedule& schedule, int rank, const Rules& rules);

}  // namespace sherd::schedule
