/// The field table as text, for `sherd recipe --help-fields` and docs/recipe.md.
#pragma once

#include <string>

namespace sherd::engine {

/// Plain text, wrapped at 100 columns.
std::string recipe_help();
/// All of docs/recipe.md.
std::string recipe_markdown();

}  // namespace sherd::engine
