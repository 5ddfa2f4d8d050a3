#include "core/json_bounds.h"

#include "core/error.h"

namespace sherd {

void check_json_bounds(std::string_view json, std::string_view where, const JsonBounds& bounds) {
  std::int64_t values = 1;
  int depth = 0;
  for (std::size_t i = 0; i < json.size(); ++i) {
    switch (json[i]) {
      case '"':
        for (++i; i < json.size() && json[i] != '"'; ++i) {
          if (json[i] == '\\') ++i;
        }
        break;
      case '[':
      case '{':
        ++values;
        if (++depth > bounds.depth) {
          throw DataError("{}: JSON nested deeper than {} levels", where, bounds.depth);
        }
        break;
      case ']':
      case '}':
        --depth;
        break;
      case ',':
        ++values;
        break;
      default:
        break;
    }
    if (values > bounds.values)
      throw DataError("{}: JSON of more than {} values", where, bounds.values);
  }
}

}  // namespace sherd
