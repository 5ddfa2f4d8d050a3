/// Between the words of a recipe and typed members: one value at a time, by its row of the table.
///
/// Whole numbers may be written as 1000, 1e3 or 1000.0: any decimal number is accepted whose value
/// is exactly whole (up to 2^53 in the last two forms). true and false are the only booleans.
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
