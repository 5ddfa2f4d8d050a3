/// The files that a recipe's `data.path` selects.
///
///   a file    that file, whatever its name
///   a folder  all regular files in it, at any depth, except hidden ones (a name that starts with a
///             dot); linked files count, linked folders don't
///   a glob    the files (not folders) that match, as glob(3) with {a,b} and ~
///
/// Folders and globs leave out files written by training runs (run_files.h). In a folder that
/// Hugging Face `datasets` has saved, only the data files count (saved_dataset.h). A path that
/// exists is never read as a glob. Files are sorted by path, byte by byte; those of a saved dataset
/// keep its order.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace sherd::data {

struct TextFiles {
  std::vector<std::string> paths;
  bool named = false;   ///< `path` is one file, which isn't skipped even if empty or binary
  int num_of_runs = 0;  ///< files and folders of training runs that were left out
};

/// `ending`: folders and globs select only files whose names end with it ("" selects all).
/// `key` is the recipe's name for `path`, for messages.
/// Errors   DataError: the path doesn't exist, has no files, is a folder that can't be read, or has
///          a Hugging Face DatasetDict.
TextFiles find_text_files(const std::string& path, std::string_view ending, std::string_view key);

}  // namespace sherd::data
