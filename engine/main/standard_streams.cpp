#include "engine/main/standard_streams.h"

#include <fcntl.h>
#include <sys/poll.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>

namespace sherd::main {
namespace {

bool has_a_reader(int file) {
  pollfd state{file, POLLOUT, 0};
  return ::poll(&state, 1, 0) < 0 || (state.revents & (POLLERR | POLLHUP)) == 0;
}

}  // namespace

void open_closed_streams() {
  for (const int file : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) {
    if (::fcntl(file, F_GETFD) >= 0 || errno != EBADF) continue;
    // The lowest number that is free is this one.
    [[maybe_unused]] const int opened = ::open("/dev/null", O_RDWR);
  }
}

std::string output_problem() {
  const bool failed = std::fflush(stdout) != 0 || std::ferror(stdout) != 0;
  return failed && has_a_reader(STDOUT_FILENO)
             ? "standard output can't be written: a part is missing."
             : "";
}

void print_error(const std::string& line) noexcept {
  std::fwrite(line.data(), 1, line.size(), stderr);
  std::fputc('\n', stderr);
  std::fflush(stderr);
}

}  // namespace sherd::main
