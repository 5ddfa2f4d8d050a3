/// The characters of a text, for data.format: chars.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "engine/data/mapped_file.h"

namespace sherd::data {

using MappedFiles = std::vector<std::shared_ptr<const MappedFile>>;

/// Whether each code point is in one of the files.
/// Errors   DataError: a file isn't UTF-8; the message names the byte
std::vector<bool> characters_of(const MappedFiles& files);

/// Returns `known` if it isn't empty; the files may then have no other characters. Otherwise
/// returns all characters of the files, ascending; there must be `vocab_size` of them. Errors name
/// `path`.
/// Errors   DataError
std::vector<char32_t> vocabulary_of(const MappedFiles& files, const std::string& path,
                                    std::int64_t vocab_size, const std::vector<char32_t>& known);

}  // namespace sherd::data
