#include "engine/main/html_file.h"

#include <cerrno>
#include <cstring>
#include <fstream>

#include "core/error.h"

namespace sherd::main {

void write_html(const std::string& path, const std::string& page) {
  std::ofstream file(path, std::ios::binary | std::ios::trunc);
  file << page;
  file.close();
  if (!file) throw UsageError("--html {}: can't be written: {}", path, std::strerror(errno));
}

}  // namespace sherd::main
