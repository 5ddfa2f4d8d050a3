#include "engine/main/standard_streams.h"

#include <fcntl.h>
#include <sys/poll.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
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

// In one piece: mpirun passes on what it finds, and writes in between.
void print_error(const std::string& line) noexcept {
  std::fflush(stderr);
  char end = '\n';
  const iovec pieces[] = {{const_cast<char*>(line.data()), line.size()}, {&end, 1}};
  ssize_t written = -1;
  do {
    written = ::writev(STDERR_FILENO, pieces, 2);
  } while (written < 0 && errno == EINTR);
  const auto done = static_cast<std::size_t>(std::max<ssize_t>(written, 0));
  if (written < 0 || done > line.size()) return;
  std::fwrite(line.data() + done, 1, line.size() - done, stderr);
  std::fputc(end, stderr);
}

}  // namespace sherd::main
