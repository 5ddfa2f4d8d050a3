/// The characters of a text, for data.format: chars.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "engine/data/mapped_file.h"

namespace sherd::data {

using MappedFiles = std::vector<std::shared_ptr<const MappedFile>>;

/// Whether each code point is in one of the files.
/// Errors   DataError: a file that isn't UTF-8, and at which byte
std::vector<bool> characters_of(const MappedFiles& files);

/// `known`, if that isn't empty: then the files may have no others. Else all that the files have, ascending, of
/// which there must be `vocab_size`. `path` is what errors name.
/// Errors   DataError
std::vector<char32_t> vocabulary_of(const MappedFiles& files, const std::string& path,
                                    std::int64_t vocab_size, const std::vector<char32_t>& known);

}  // namespace sherd::data
