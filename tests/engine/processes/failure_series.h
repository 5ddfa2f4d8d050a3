/// Many failures of a kind, one after another, with what each took.
#pragma once

#include <fmt/core.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <map>
#include <string>

namespace sherd::testing {

using Seconds = std::chrono::duration<double>;

struct SeenFailure {
  std::string kind, text;
  Seconds took{};  ///< until all processes had ended
};

/// Calls `run` with 0, 1, ... up to `end`, or with what SHERD_FAILURES=FIRST..END says, until an
/// expectation isn't met. Prints each failure, and of each kind how many there were and the longest.
inline void run_failures(int end, const std::function<SeenFailure(int)>& run) {
  int first = 0;
  if (const char* numbers = std::getenv("SHERD_FAILURES")) {
    ASSERT_EQ(std::sscanf(numbers, "%d..%d", &first, &end), 2) << "SHERD_FAILURES=FIRST..END";
  }
  std::map<std::string, std::pair<int, Seconds>> found;
  for (int number = first; number < end && !::testing::Test::HasFailure(); ++number) {
    const SeenFailure seen = run(number);
    auto& [count, longest] = found[seen.kind];
    ++count;
    longest = std::max(longest, seen.took);
    fmt::print("failure {}: {}: {:.1f} s\n", number, seen.text, seen.took.count());
    std::fflush(stdout);
  }
  for (const auto& [kind, seen] : found) {
    fmt::print("{}: {} times, the run ended within {:.1f} s\n", kind, seen.first,
               seen.second.count());
  }
}

}  // namespace sherd::testing
