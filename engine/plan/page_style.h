/// The style of the plan's page, in addition to the style of all pages (engine/report/page.h).
/// Colours of categories are the variables --<name of the category>.
#pragma once

#include <string_view>

namespace sherd::engine {

extern const std::string_view kPlanPageStyle;

}  // namespace sherd::engine
