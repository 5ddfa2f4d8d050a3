/// Reads a small file that others may have written: a template, a tokenizer, a recipe, questions.
///
/// A folder may contain a pipe, a device or a huge file under any name. Only regular files are
/// read; links are followed. Opening never blocks. A file above the stated size is refused before
/// it takes memory. Files accessed through checkpoint::Disk are read by checkpoint::read_followed,
/// which guarantees the same.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace sherd {

/// The whole file.
/// Errors   DataError "path: can't be read: why.": missing, not a regular file, above `most_bytes`.
///          For a Git LFS pointer it says what to do (core/lfs_pointer.h).
std::string read_small_file(const std::string& path, std::int64_t most_bytes);
/// The same, but instead of throwing it returns nothing and sets `problem` to the reason.
std::optional<std::string> read_small_file(const std::string& path, std::int64_t most_bytes,
                                           std::string& problem);

/// Why a file that will be read as a stream can't be: "it is a folder", ...; "" if it can.
std::string problem_of_file(const std::string& path, std::int64_t most_bytes);

}  // namespace sherd
