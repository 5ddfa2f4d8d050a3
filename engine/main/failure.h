/// Messages and exit code of a command that has failed.
#pragma once

#include <exception>
#include <string>
#include <vector>

namespace sherd::main {

inline constexpr int kUnexpected = 1;

struct Failure {
  int exit_code = 0;
  std::vector<std::string> lines{};  ///< one per problem, without control characters
};
Failure failure_of(const std::exception_ptr& error);

}  // namespace sherd::main
