/// Converts single values between a recipe's text and typed members, by their row of the table.
///
/// Whole numbers may be written as 1000, 1e3 or 1000.0: any decimal number with an exactly whole
/// value is accepted (up to 2^53 in the last two forms). true and false are the only booleans.
#pragma once

#include <string>

#include "engine/recipe/fields.h"
#include "engine/recipe/source.h"

namespace sherd::engine {

/// Checks type, range and choice; throws UsageError beginning with `where`.
void assign_value(const Field& field, const RawValue& raw, const std::string& where,
                  Recipe& recipe);

/// The member as YAML; `assign_value` reads the same value back from it.
std::string format_value(const Field& field, const Recipe& recipe);

}  // namespace sherd::engine
