/// Which files a recipe's `data.path` means.
///
///   a file    that file, whatever its name
///   a folder  all regular files in it, at any depth, but nothing hidden (a name that starts with a
///             dot) and no linked folders; linked files are taken
///   a glob    the files (not folders) that match, after glob(3) with {a,b} and ~
///
/// What training runs have written is left out of folders and globs (run_files.h). A path that exists is
/// never read as a glob. Order is by path, byte by byte.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace sherd::data {

struct TextFiles {
  std::vector<std::string> paths;
  bool named = false;   ///< one file, named outright: an empty or binary one isn't passed over
  int num_of_runs = 0;  ///< left out: files and folders that training runs have written
};

/// `ending`: only files whose name ends so are taken from folders and globs ("" takes all).
/// `key` is the recipe's name for `path`, for messages.
/// Errors   DataError: nothing there, nothing in it, a folder that can't be read.
TextFiles find_text_files(const std::string& path, std::string_view ending, std::string_view key);

}  // namespace sherd::data
