/// A temporary folder for a test, removed with its contents when the test ends.
#pragma once

#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <string_view>

#include "core/error.h"

namespace sherd::test {

class TempFolder {
 public:
  explicit TempFolder(
      const std::filesystem::path& parent = std::filesystem::temp_directory_path()) {
    std::string pattern = (parent / "sherd-XXXXXX").string();
    SHERD_CHECK(::mkdtemp(pattern.data()), "no temporary folder {}", pattern);
    path_ = pattern;
  }
  ~TempFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  TempFolder(const TempFolder&) = delete;
  TempFolder& operator=(const TempFolder&) = delete;

  const std::string& path() const { return path_; }
  std::string file(std::string_view name) const { return path_ + "/" + std::string(name); }

  /// Writes a file, creates its folders, and returns its path.
  std::string write(std::string_view name, std::string_view content) const {
    const std::string path = file(name);
    std::filesystem::create_directories(std::filesystem::path(path).parent_path());
    std::ofstream(path, std::ios::binary) << content;
    return path;
  }
  std::string read(std::string_view name) const {
    std::ifstream in(file(name), std::ios::binary);
    return {std::istreambuf_iterator<char>(in), {}};
  }

 private:
  std::string path_;
};

/// A folder in memory, if this machine has one, for tests that make hundreds of folders and would
/// mostly wait for the disk.
inline std::filesystem::path memory_folder() {
  const char* place = "/dev/shm";
  return ::access(place, W_OK) == 0 ? place : std::filesystem::temp_directory_path();
}

}  // namespace sherd::test
