/// Checks JSON before it is parsed. A parser takes up to 30 times the text's bytes, and deeply
/// nested values are copied, compared and written by recursion.
#pragma once

#include <cstdint>
#include <string_view>

namespace sherd {

struct JsonBounds {
  std::int64_t values = 1 << 24;
  int depth = 100;
};

/// One pass. Text that isn't JSON may pass; the parser finds that.
/// Errors   DataError "where: JSON of more than ...", "where: JSON nested deeper than ..."
void check_json_bounds(std::string_view json, std::string_view where,
                       const JsonBounds& bounds = {});

}  // namespace sherd
