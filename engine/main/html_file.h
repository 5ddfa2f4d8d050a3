/// Pages that commands write to the file of --html.
#pragma once

#include <string>

namespace sherd::main {

/// Errors   UsageError with the option and the file, if it can't be written.
void write_html(const std::string& path, const std::string& page);

}  // namespace sherd::main
