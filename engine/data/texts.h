/// The texts that a recipe's `data.path` selects, for formats that make tokens from text.
///
///   X.jsonl, X.ndjson   a line is a text: its string `field`. Empty lines and texts are skipped
///   X.parquet, X.arrow  a row is a text: its string in column `field`. Empty texts are skipped
///   anything else       a file is a text; in a folder or glob, empty and binary files are skipped
///   either with .gz, .zst   the same, unpacked
///
/// The same texts in any of these forms are the same data. Plain files are mapped; all others are
/// read into memory.
#pragma once

#include <string>
#include <string_view>

#include "engine/data/characters.h"

namespace sherd::data {

struct Texts {
  MappedFiles texts{};
  MappedFiles files{};                ///< the files of these texts, as they are on disk
  int num_empty = 0, num_binary = 0;  ///< files skipped
  int num_of_runs = 0;                ///< files and folders left out (files/run_files.h)
  std::int64_t num_null = 0;          ///< lines and rows left out because their text is null
};

/// `key` is the recipe's name for `path`, for messages.
/// Errors   DataError, one line: no files (files/text_files.h) or no text; a line that isn't JSON
///          or has no such string; a table without such a column; packed files that are damaged or in another format; a token
///          file.
Texts open_texts(const std::string& path, std::string_view key, const std::string& field);

/// Errors   DataError if `path` has the extension of a packed file or a list of texts, which can't
///          hold tokens
void require_tokens(const std::string& path);

}  // namespace sherd::data
