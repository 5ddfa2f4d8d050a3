/// Errors, by whose fault they are. Libraries throw them; only `main` prints and picks the exit
/// code.
///
/// A message says where - what was expected and what was found - what to do, in one line.
/// `SHERD_CHECK` is for our own broken invariants: it prints file:line and aborts.
#pragma once

#include <fmt/core.h>

#include <stdexcept>
#include <string>

namespace sherd {

class Error : public std::runtime_error {
 public:
  Error(int exit_code, const std::string& message)
      : std::runtime_error(message), exit_code_(exit_code) {}
  int exit_code() const { return exit_code_; }

 private:
  int exit_code_;
};

/// The person running asked for something that can't be done: bad recipe, bad flag. Exit 2.
class UsageError : public Error {
 public:
  template <class... Args>
  explicit UsageError(fmt::format_string<Args...> format, Args&&... args)
      : Error(2, fmt::format(format, std::forward<Args>(args)...)) {}
};

/// A file is missing, unreadable, damaged, or not what it should be. Exit 3.
class DataError : public Error {
 public:
  template <class... Args>
  explicit DataError(fmt::format_string<Args...> format, Args&&... args)
      : Error(3, fmt::format(format, std::forward<Args>(args)...)) {}
};

/// Another rank stopped or didn't answer. Exit 4.
class PeerError : public Error {
 public:
  template <class... Args>
  explicit PeerError(fmt::format_string<Args...> format, Args&&... args)
      : Error(4, fmt::format(format, std::forward<Args>(args)...)) {}
};

/// The run itself can't continue: a non-finite loss, too many skipped steps. Exit 5.
class TrainingError : public Error {
 public:
  template <class... Args>
  explicit TrainingError(fmt::format_string<Args...> format, Args&&... args)
      : Error(5, fmt::format(format, std::forward<Args>(args)...)) {}
};

/// The person pressed Ctrl-C and what is on disk is intact. Exit 130.
class Interrupted : public Error {
 public:
  template <class... Args>
  explicit Interrupted(fmt::format_string<Args...> format, Args&&... args)
      : Error(130, fmt::format(format, std::forward<Args>(args)...)) {}
};

/// A scheduler took the machine away, and the run saved its state. Start the same command again to
/// continue. Exit 75 (sysexits.h: a temporary failure, try again).
class Requeue : public Error {
 public:
  template <class... Args>
  explicit Requeue(fmt::format_string<Args...> format, Args&&... args)
      : Error(75, fmt::format(format, std::forward<Args>(args)...)) {}
};

namespace detail {
[[noreturn]] void check_failed(const char* file, int line, const char* condition,
                               const std::string& message);
inline std::string check_message() {
  return {};
}
template <class... Args>
std::string check_message(fmt::format_string<Args...> format, Args&&... args) {
  return fmt::format(format, std::forward<Args>(args)...);
}
}  // namespace detail

}  // namespace sherd

/// SHERD_CHECK(condition) or SHERD_CHECK(condition, "format", values...): a false condition is our
/// bug.
#define SHERD_CHECK(condition, ...)                                    \
  (__builtin_expect(static_cast<bool>(condition), 1)                   \
       ? (void)0                                                       \
       : ::sherd::detail::check_failed(__FILE__, __LINE__, #condition, \
                                       ::sherd::detail::check_message(__VA_ARGS__)))
