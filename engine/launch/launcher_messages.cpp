#include "engine/launch/launcher_messages.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <regex>

namespace sherd::engine {
namespace {

const std::string kBar(74, '-');
// Of each signal that mpirun passes on, with its number.
constexpr std::string_view kForwarding = "mpirun: Forwarding signal ";
// A longer text between two bars is somebody else's.
constexpr int kMostLines = 20;

bool is_about_ended_processes(std::string_view block) {
  return std::ranges::any_of(
      std::array<std::string_view, 3>{"Primary job ", "mpirun noticed that ", "mpirun detected "},
      [&](std::string_view begin) { return block.substr(kBar.size() + 1).starts_with(begin); });
}

bool may_be_forwarding(std::string_view line) {
  return line.starts_with(kForwarding) || kForwarding.starts_with(line);
}

}  // namespace

std::string MpirunMessages::pass(std::string_view text) {
  std::string out;
  for (const char c : text) {
    if (is_passed_) {
      out += c;
      is_passed_ = c != '\n';
      continue;
    }
    line_ += c;
    if (c == '\n') {
      take_line(out);
    } else if (block_.empty() && !kBar.starts_with(line_) && !may_be_forwarding(line_)) {
      out += line_;
      line_.clear();
      is_passed_ = true;
    }
  }
  return out;
}

std::string MpirunMessages::rest() {
  std::string out = block_ + line_;
  block_.clear();
  line_.clear();
  return out;
}

void MpirunMessages::take_line(std::string& out) {
  const bool is_bar = line_ == kBar + "\n";
  if (block_.empty() && !is_bar) {
    if (!line_.starts_with(kForwarding)) out += line_;
  } else {
    const bool is_begin = block_.empty();
    block_ += line_;
    const auto lines = std::ranges::count(block_, '\n');
    if ((is_bar && !is_begin) || lines > kMostLines) end_block(out);
  }
  line_.clear();
}

void MpirunMessages::end_block(std::string& out) {
  if (!is_about_ended_processes(block_)) out += block_;
  static const std::regex kEnded(R"(process rank (\d+) with PID \d+ on node (\S+) exited)");
  std::smatch found;
  if (ended_.empty() && std::regex_search(block_, found, kEnded)) {
    ended_ = fmt::format("process {} on {}", found[1].str(), found[2].str());
  }
  block_.clear();
}

}  // namespace sherd::engine
