/// Reads a small file that somebody else wrote: a template, a tokenizer, a recipe, questions.
///
/// A folder may have a pipe, a device or a huge file under any name. Only regular files are read, through
/// links too; opening never waits, and what is larger than stated is refused before it takes memory. What
/// goes through checkpoint::Disk is read by checkpoint::read_followed, which promises the same.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace sherd {

/// The whole file.
/// Errors   DataError "path: can't be read: why.": missing, not a regular file, above `most_bytes`.
///          Of a pointer of Git LFS: what to do (core/lfs_pointer.h).
std::string read_small_file(const std::string& path, std::int64_t most_bytes);
/// The same; none, and `problem` says why, where that would throw.
std::optional<std::string> read_small_file(const std::string& path, std::int64_t most_bytes,
                                           std::string& problem);

/// Why a file that will be read as a stream can't be: "it is a folder", ...; "" if it can.
std::string problem_of_file(const std::string& path, std::int64_t most_bytes);

}  // namespace sherd
