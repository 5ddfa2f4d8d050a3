#include "engine/data/files/text_files.h"

#include <glob.h>

#include <algorithm>
#include <filesystem>
#include <iterator>
#include <system_error>

#include "core/error.h"
#include "engine/data/files/run_files.h"
#include "engine/data/files/saved_dataset.h"

namespace sherd::data {
namespace {

namespace fs = std::filesystem;

void collect(const fs::path& folder, TextFiles& found) {
  refuse_dataset_dict(folder);
  if (is_saved_dataset(folder)) {
    std::ranges::move(files_of_saved_dataset(folder), std::back_inserter(found.paths));
    return;
  }
  const bool in_run_folder = is_run_folder(folder);
  std::error_code error;
  fs::directory_iterator entries(folder, error);
  for (; !error && entries != fs::directory_iterator(); entries.increment(error)) {
    const fs::path& path = entries->path();
    if (path.filename().native().starts_with('.')) continue;
    if (is_run_file(folder, path.filename().native(), in_run_folder)) {
      ++found.num_of_runs;
      continue;
    }
    std::error_code gone;  // a dangling link is no text
    if (entries->is_directory(gone)) {
      if (!entries->is_symlink(gone)) collect(path, found);
    } else if (entries->is_regular_file(gone)) {
      found.paths.push_back(path.native());
    }
  }
  if (error) {
    throw DataError("{}: the folder can't be read ({}); allow this user to read it.",
                    folder.native(), error.message());
  }
}

std::vector<std::string> match(const std::string& pattern) {
  glob_t matches{};
  const int result =
      ::glob(pattern.c_str(), GLOB_ERR | GLOB_NOSORT | GLOB_BRACE | GLOB_TILDE, nullptr, &matches);
  std::vector<std::string> paths(matches.gl_pathv, matches.gl_pathv + matches.gl_pathc);
  ::globfree(&matches);
  if (result != 0 && result != GLOB_NOMATCH) {
    throw DataError("{}: a folder of this glob can't be read; allow this user to read it.",
                    pattern);
  }
  std::error_code error;
  std::erase_if(paths, [&](const std::string& path) { return !fs::is_regular_file(path, error); });
  return paths;
}

}  // namespace

TextFiles find_text_files(const std::string& path, std::string_view ending, std::string_view key) {
  if (path.empty()) {
    throw DataError("{0} is empty; set {0} to a text file, a folder of them, or a glob.", key);
  }
  std::error_code error;
  const fs::file_status status = fs::status(path, error);
  TextFiles found;
  std::string_view place = "folder has";
  if (fs::is_directory(status)) {
    collect(path, found);
  } else if (fs::exists(status)) {
    return {.paths = {path}, .named = true};
  } else if (error && error != std::errc::no_such_file_or_directory) {
    throw DataError("{}: can't be read ({}); set {} to text that this user may read.", path,
                    error.message(), key);
  } else if (path.find_first_of("*?[{~") != std::string::npos) {
    found.paths = match(path);
    found.num_of_runs = static_cast<int>(std::erase_if(
        found.paths, [](const std::string& file) { return is_run_file(fs::path(file)); }));
    std::erase_if(found.paths, [](const std::string& file) {
      return file.ends_with(".json") && is_saved_dataset(fs::path(file).parent_path());
    });
    place = "glob matches";
  } else {
    throw DataError(
        "{}: no such file or folder; set {} to a text file, a folder of them, or a "
        "glob.",
        path, key);
  }
  std::erase_if(found.paths, [&](const std::string& file) { return !file.ends_with(ending); });
  if (found.paths.empty()) {
    throw DataError("{}: the {} no {} files{}; set {} to a text file, a folder of them, or a glob.",
                    path, place, ending.empty() ? "visible" : ending,
                    found.num_of_runs > 0 ? " but those of training runs" : "", key);
  }
  if (!is_saved_dataset(path)) {  // braces may name a file twice
    std::ranges::sort(found.paths);
    const auto repeated = std::ranges::unique(found.paths);
    found.paths.erase(repeated.begin(), repeated.end());
  }
  return found;
}

}  // namespace sherd::data
