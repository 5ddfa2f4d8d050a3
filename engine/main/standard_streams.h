/// Handles standard input, output and error that are closed, full, or without a reader.
#pragma once

#include <string>

namespace sherd::main {

/// Opens /dev/null for each of the three that is closed. Otherwise the next opened file would get
/// its number, and printed text would be written into that file.
void open_closed_streams();

/// "" if all output has been written, or if its reader (a pipe or a terminal) has closed. Otherwise
/// a sentence with the problem, such as a full disk.
std::string output_problem();

/// Writes a line to standard error, or nothing if it can't be written.
void print_error(const std::string& line) noexcept;

}  // namespace sherd::main
