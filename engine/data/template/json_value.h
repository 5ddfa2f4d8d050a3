/// Converts JSON to a template's values.
#pragma once

#include <cstdint>
#include <string_view>

#include "engine/data/template/value.h"

namespace sherd::templates {

/// Keys keep their order; every text, including keys, has `mark`. A whole number of more than 63 bits
/// would be shown with other digits, so it is refused, but for fields of a `row`, which hold hashes.
/// Errors   Problem naming the place: not JSON, or such a number
Value value_of_json(std::string_view json, std::uint8_t mark, bool row = false);

/// A copy in which `mark` is added to every byte of text.
Value with_mark(const Value& value, std::uint8_t mark);

}  // namespace sherd::templates
