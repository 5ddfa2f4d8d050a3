#include "engine/output_folder.h"

#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>

#include "core/error.h"

namespace sherd::engine {

void prepare_output_folder(const std::string& folder) {
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  if (error || access(folder.c_str(), W_OK | X_OK) != 0) {
    throw UsageError(
        "run.output_dir {}: can't be written: {}. Choose another folder with --set "
        "run.output_dir=...",
        folder, error ? error.message() : std::strerror(errno));
  }
}

void write_file(const std::string& path, const std::string& text) {
  const std::string beside = path + ".tmp";
  std::ofstream file(beside, std::ios::binary | std::ios::trunc);
  file << text;
  file.close();
  if (!file) throw DataError("{}: can't be written: {}", beside, std::strerror(errno));
  std::error_code error;
  std::filesystem::rename(beside, path, error);
  if (error) throw DataError("{}: can't be written: {}", path, error.message());
}

}  // namespace sherd::engine
