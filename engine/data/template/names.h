/// Whether a template's filters and tests are supported.
#pragma once

#include <string_view>

#include "engine/data/template/syntax.h"

namespace sherd::templates {

/// True if the template has {% generation %}.
/// Errors   DataError at the first name that isn't supported; like jinja2, not inside of
///          conditions.
bool check_names(const Block& body, std::string_view where);

}  // namespace sherd::templates
