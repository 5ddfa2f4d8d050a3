#include "tests/life/process.h"
#include "tests/where.h"

#include <fmt/format.h>
#include <signal.h>
#include <sys/wait.h>

#include <algorithm>
#include <sstream>

namespace sherd::testing {
namespace {

// A limit that a process meets by a signal would only kill it; ignored, writes fail as on a full
// disk, with another number.
std::vector<std::string> command(const test::TempFolder& folder,
                                 const std::vector<std::string>& arguments, int file_limit_kib) {
  const std::string limit =
      file_limit_kib ? fmt::format("trap '' XFSZ; ulimit -f {}; ", 2 * file_limit_kib) : "";
  std::vector<std::string> words = {"/bin/sh", "-c", limit + "exec \"$@\" 2>\"$0\"",
                                    folder.file("err"), SHERD_PROGRAM};
  words.insert(words.end(), arguments.begin(), arguments.end());
  return words;
}

// The last number after `before_number` in whole lines that begin with `begin`; -1: none.
std::int64_t last_number(const std::string& text, const std::string& begin,
                         const std::string& before_number) {
  std::int64_t last = -1;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line) && !lines.eof();) {
    const std::size_t at = line.rfind(before_number);
    if (!line.starts_with(begin) || at == std::string::npos) continue;
    last = std::stoll(line.substr(at + before_number.size()));
  }
  return last;
}

}  // namespace

std::int64_t Ended::acknowledged() const {
  return std::max<std::int64_t>(0, last_number(out, "saved ", "/step-"));
}

std::int64_t Ended::resumed_from() const {
  if (out.find("starting at step 0, from random weights\n") != std::string::npos) return 0;
  return last_number(out, "resumed from ", "/step-");
}

SherdProcess::SherdProcess(const std::vector<std::string>& arguments, int file_limit_kib)
    : child_(command(folder_, arguments, file_limit_kib)) {}

bool SherdProcess::wait_for(const std::string& begin) {
  while (child_.output().find('\n' + begin) == std::string::npos) {
    if (!child_.read_some()) return false;
  }
  return true;
}

void SherdProcess::let_run(std::chrono::microseconds time) {
  child_.read_until(std::chrono::steady_clock::now() + time);
}

void SherdProcess::send(int signal) {
  ::kill(child_.pid(), signal);
}

Ended SherdProcess::wait() {
  const int status = child_.wait();
  Ended ended{.out = child_.output(), .err = folder_.read("err")};
  if (WIFEXITED(status)) ended.exit_code = WEXITSTATUS(status);
  if (WIFSIGNALED(status)) ended.signal = WTERMSIG(status);
  return ended;
}

Ended run_sherd(const std::vector<std::string>& arguments, int file_limit_kib) {
  return SherdProcess(arguments, file_limit_kib).wait();
}

}  // namespace sherd::testing
