/// The folder that a run writes to.
#pragma once

#include <string>

namespace sherd::engine {

/// Everything that a run writes goes here, so find out before computing anything.
/// Errors   UsageError if it can't be made or written to.
void prepare_output_folder(const std::string& folder);

/// Replaces the file as a whole. Errors   DataError naming it.
void write_file(const std::string& path, const std::string& text);

}  // namespace sherd::engine
