/// The program `sherd` as a child that is killed, stopped or continued, and what it printed.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

#include "tests/checkpoint/support/child.h"
#include "tests/support/values/temp_folder.h"

namespace sherd::testing {

/// One that has ended.
struct Ended {
  int exit_code = -1;  ///< -1: by a signal
  int signal = 0;
  std::string out, err;

  std::int64_t acknowledged() const;  ///< the last checkpoint that it said it saved; 0: none
  std::int64_t resumed_from() const;  ///< the step that it began with; -1: it didn't say
};

class SherdProcess {
 public:
  /// Files that it writes end at `file_limit_kib`, as at the edge of a full disk; 0: no limit.
  explicit SherdProcess(const std::vector<std::string>& arguments, int file_limit_kib = 0);

  /// Reads on until it has said a line that begins so; false: it ended before.
  bool wait_for(const std::string& begin);
  void let_run(std::chrono::microseconds time);
  void send(int signal);
  Ended wait();

 private:
  test::TempFolder folder_;
  test::Child child_;
};

Ended run_sherd(const std::vector<std::string>& arguments, int file_limit_kib = 0);

}  // namespace sherd::testing
