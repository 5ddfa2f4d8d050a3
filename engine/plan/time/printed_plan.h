/// What `sherd plan RECIPE` prints.
#pragma once

#include <string>

#include "engine/plan/largest_segment.h"
#include "engine/plan/report.h"

namespace sherd::engine {

/// The segment that was planned, if there are several, the report, and the predicted step if this
/// processor's rates are known.
std::string printed_plan(const LargestSegment& planned, const PlanReport& report);
/// plan_json, and the predicted step, too, if the rates are known.
std::string printed_plan_json(const LargestSegment& planned, const PlanReport& report);

}  // namespace sherd::engine
