/// What the fuzzers share. Each is one file, NAME_fuzz.cpp, which defines
///
///   extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size);
///
/// and is run by `./dev fuzz NAME [SECONDS]`. Whatever the bytes are, the code under test answers or
/// throws a sherd::Error that fits: a crash, an abort (CHECK), a sanitizer's report, another
/// exception or more than 20 s for one input is a finding, and so is `demand` that fails.
#pragma once

#include <unistd.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <string_view>

#include "core/error.h"
#include "tests/support/values/temp_folder.h"

namespace sherd::fuzz {

/// Ends the process, which is how libFuzzer learns of a finding.
inline void demand(bool holds, std::string_view label) {
  if (holds) return;
  std::fprintf(stderr, "demanded: %.*s\n", static_cast<int>(label.size()), label.data());
  std::abort();
}

/// Calls `use`, which may throw an error whose exit code is 2 (usage), 3 (data) or `also`.
template <class Use>
void expect_answer(const Use& use, int also = 2) {
  try {
    use();
  } catch (const Error& error) {
    const int code = error.exit_code();
    demand(code == 2 || code == 3 || code == also, error.what());
    demand(*error.what() != '\0', "an error says what is wrong");
  }
}

/// Files of the process, in memory where there is such a place; gone when it ends in the usual way.
inline const test::TempFolder& folder() {
  static const test::TempFolder kFolder(test::memory_folder());
  return kFolder;
}

/// What runs print would bury libFuzzer's own lines, which go to stderr.
inline void silence_stdout() {
  static const bool kDone = std::freopen("/dev/null", "w", stdout) != nullptr;
  demand(kDone, "/dev/null can be written");
}

/// Small decisions from the bytes of an input, one after the other; 0 when they are used up.
class Bytes {
 public:
  Bytes(const std::uint8_t* data, std::size_t size) : data_(data), size_(size) {}

  std::uint8_t byte() { return next_ < size_ ? data_[next_++] : std::uint8_t{0}; }
  /// Below `end`, which is at least 1.
  std::size_t below(std::size_t end) {
    const std::size_t high = byte();
    return (high * 256 + byte()) % end;
  }
  bool empty() const { return next_ >= size_; }
  std::string_view rest() const {
    return {reinterpret_cast<const char*>(data_) + next_, size_ - next_};
  }

 private:
  const std::uint8_t* data_;
  std::size_t size_, next_ = 0;
};

}  // namespace sherd::fuzz
