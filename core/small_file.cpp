#include "core/small_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "core/error.h"
#include "core/lfs_pointer.h"

namespace sherd {
namespace {

struct OpenFile {
  // Without O_NONBLOCK, opening a pipe would wait for a writer.
  explicit OpenFile(const std::string& path)
      : number(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY)) {}
  ~OpenFile() {
    if (number >= 0) ::close(number);
  }
  OpenFile(const OpenFile&) = delete;
  OpenFile& operator=(const OpenFile&) = delete;
  int number;
};

std::string too_large(std::int64_t bytes, std::int64_t most) {
  return fmt::format("it has {} bytes; at most {} are allowed", bytes, most);
}

std::string problem_of(const OpenFile& file, std::int64_t most_bytes, std::int64_t& bytes) {
  struct stat status {};
  if (file.number < 0 || ::fstat(file.number, &status) != 0) return std::strerror(errno);
  if (S_ISDIR(status.st_mode)) return "it is a folder";
  if (!S_ISREG(status.st_mode)) return "it isn't a regular file";
  bytes = status.st_size;
  return bytes > most_bytes ? too_large(bytes, most_bytes) : "";
}

}  // namespace

std::optional<std::string> read_small_file(const std::string& path, std::int64_t most_bytes,
                                           std::string& problem) {
  const OpenFile file(path);
  std::int64_t bytes = 0;
  problem = problem_of(file, most_bytes, bytes);
  if (!problem.empty()) return std::nullopt;
  std::string text;
  // One byte more than its size, to detect its end; it may grow meanwhile.
  for (std::size_t room = static_cast<std::size_t>(bytes) + 1;; room = 1 << 16) {
    const std::size_t done = text.size();
    text.resize(done + room);
    const ssize_t count = ::read(file.number, text.data() + done, room);
    text.resize(done + static_cast<std::size_t>(count > 0 ? count : 0));
    if (count < 0 && errno != EINTR) problem = std::strerror(errno);
    if (std::ssize(text) > most_bytes) problem = too_large(std::ssize(text), most_bytes);
    if (!problem.empty()) return std::nullopt;
    if (count == 0) return text;
  }
}

std::string read_small_file(const std::string& path, std::int64_t most_bytes) {
  std::string problem;
  std::optional<std::string> text = read_small_file(path, most_bytes, problem);
  if (!text) throw DataError("{}: can't be read: {}.", path, problem);
  refuse_lfs_pointer(path, *text, std::ssize(*text));
  return std::move(*text);
}

std::string problem_of_file(const std::string& path, std::int64_t most_bytes) {
  std::int64_t bytes = 0;
  return problem_of(OpenFile(path), most_bytes, bytes);
}

}  // namespace sherd
