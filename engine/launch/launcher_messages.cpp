#include "engine/launch/launcher_messages.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <regex>

namespace sherd::engine {
namespace {

const std::string kBar(74, '-');
// The beginnings of lines that are left out: of each signal that mpirun passes on, with its number,
// and of what is_about_addresses has cut in two.
constexpr std::array<std::string_view, 3> kLines = {"mpirun: Forwarding signal ",
                                                    "prterun: Forwarding signal ",
                                                    "Unable to find reachable pairing between "};
// A longer text between two bars is somebody else's.
constexpr int kMostLines = 20;

bool is_about_ended_processes(std::string_view block) {
  return std::ranges::any_of(
      std::array<std::string_view, 5>{"Primary job ", "mpirun noticed that ", "mpirun detected ",
                                      "prterun noticed that ", "prterun detected "},
      [&](std::string_view begin) { return block.substr(kBar.size() + 1).starts_with(begin); });
}

// Open MPI 5 prints a line for each pair of addresses that don't reach each other, although others
// do: "[host][[1,1],0][.../btl_tcp_proc.c:266:...] Unable to find ...". If none did, it would end
// with another message.
bool is_about_addresses(std::string_view line) {
  return line.starts_with('[') && line.find("/btl_tcp_proc.c:") != line.npos;
}
bool may_be_about_addresses(std::string_view line) {
  constexpr std::string_view kJob = "[[";
  if (!line.starts_with('[')) return false;
  const std::size_t end = line.find(']');
  if (end == line.npos) return true;
  const std::string_view after = line.substr(end + 1);
  return after.starts_with(kJob) || kJob.starts_with(after);
}

bool is_left_out(std::string_view line) {
  return is_about_addresses(line) || std::ranges::any_of(kLines, [&](std::string_view begin) {
           return line.starts_with(begin);
         });
}
// `line` hasn't come to its end yet.
bool may_be_left_out(std::string_view line) {
  return may_be_about_addresses(line) || std::ranges::any_of(kLines, [&](std::string_view begin) {
           return line.starts_with(begin) || begin.starts_with(line);
         });
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
    } else if (block_.empty() && !kBar.starts_with(line_) && !may_be_left_out(line_)) {
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
    if (!is_left_out(line_)) out += line_;
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
