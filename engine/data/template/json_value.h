/// JSON becomes a template's values.
#pragma once

#include <cstdint>
#include <string_view>

#include "engine/data/template/value.h"

namespace sherd::templates {

/// Keys keep their order; every text, keys too, has `mark`.
/// Errors   Problem: not JSON, with the place
Value value_of_json(std::string_view json, std::uint8_t mark);

/// A copy in which every text's bytes have these bits too.
Value with_mark(const Value& value, std::uint8_t mark);

}  // namespace sherd::templates
