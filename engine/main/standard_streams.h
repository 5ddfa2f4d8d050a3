/// Standard input, output and error as a program may find them: closed, full, or without a reader.
#pragma once

#include <string>

namespace sherd::main {

/// Opens /dev/null for each of the three that is closed: else the next file to be opened would get
/// its number, and what is printed would be written into that file.
void open_closed_streams();

/// "" if what was printed has been written. Also where nobody reads any more (a pipe or a terminal
/// that is closed): that was the reader's choice. Otherwise a sentence, such as for a full disk.
std::string output_problem();

/// Writes a line to standard error, or nothing if that can't be written.
void print_error(const std::string& line) noexcept;

}  // namespace sherd::main
