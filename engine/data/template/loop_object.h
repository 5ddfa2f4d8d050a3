/// `loop` in the body of a {% for %}.
#pragma once

#include <vector>

#include "engine/data/template/value.h"

namespace sherd::templates {

/// The loop object at element i.
Value loop_object(const std::vector<Value>& elements, std::size_t i);

}  // namespace sherd::templates
