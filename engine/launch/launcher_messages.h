/// What mpirun and its processes print on standard error, without mpirun's own words about processes
/// that ended, signals that it passes on, and addresses that it doesn't use: `sherd launch` says in
/// one line what they say in ten.
///
/// Source   Open MPI 4.1 and 5.0 print a bar of dashes before and after each message.
#pragma once

#include <string>
#include <string_view>

namespace sherd::engine {

class MpirunMessages {
 public:
  /// Returns what can be printed now, of `text` and of what was held back. Only lines that may be
  /// mpirun's are held back.
  std::string pass(std::string_view text);
  /// The end has come: what is still held back.
  std::string rest();
  /// "process 1 on node7": which process ended first, if mpirun said so; otherwise empty.
  const std::string& ended() const { return ended_; }

 private:
  void take_line(std::string& out);
  void end_block(std::string& out);

  std::string line_;  // its beginning, not yet passed on
  std::string block_;
  std::string ended_;
  bool is_passed_ = false;  // the beginning of this line
};

}  // namespace sherd::engine
