/// The looks of the plan's page: one style sheet, light and dark, without fonts or images from
/// anywhere. Colours of categories are the variables --<name of the category>.
#pragma once

#include <string_view>

namespace sherd::engine {

extern const std::string_view kPlanPageStyle;

}  // namespace sherd::engine
