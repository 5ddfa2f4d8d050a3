/// The texts that a recipe's `data.path` means, for the formats whose tokens are made of text.
///
///   X.jsonl, X.ndjson   a line is a text: its string `field`. Empty lines and texts are passed over
///   anything else       a file is a text; of a folder or glob, empty and binary files are passed over
///   either with .gz, .zst   the same, unpacked
///
/// The same texts in any of these forms are the same data. Plain files are mapped, all others are read
/// into memory.
#pragma once

#include <string>
#include <string_view>

#include "engine/data/characters.h"

namespace sherd::data {

struct Texts {
  MappedFiles texts{};
  MappedFiles files{};                ///< that they are in, as they are on disk
  int num_empty = 0, num_binary = 0;  ///< files passed over
  int num_of_runs = 0;                ///< files and folders left out (files/run_files.h)
};

/// `key` is the recipe's name for `path`, for messages.
/// Errors   DataError, one line: nothing there (files/text_files.h), or nothing that is text; a line that
///          isn't JSON or has no such string; packed files that are damaged or of another kind; a file of
///          tokens.
Texts open_texts(const std::string& path, std::string_view key, const std::string& field);

/// Errors   DataError if `path` is named like a packed file or a list of texts, which hold no tokens
void require_tokens(const std::string& path);

}  // namespace sherd::data
