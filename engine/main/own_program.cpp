#include "engine/main/own_program.h"

#include <unistd.h>

#include <array>

#include "core/error.h"

namespace sherd::main {

std::string own_path() {
  std::array<char, 4096> path{};
  const ssize_t length = ::readlink("/proc/self/exe", path.data(), path.size() - 1);
  SHERD_CHECK(length > 0, "/proc/self/exe can't be read");
  return {path.data(), static_cast<std::size_t>(length)};
}

}  // namespace sherd::main
