#include "sharding/processes/join_watch.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <sstream>

#include "core/thread.h"

namespace sherd::sharding {
namespace {

namespace fs = std::filesystem;

std::string content(const fs::path& path) {
  std::ifstream file(path);
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

// Of an environment as /proc shows it: NAME=value, each with a zero at its end.
std::string variable(const std::string& environment, const std::string& name) {
  const std::string mark = name + "=";
  for (std::size_t at = 0; at < environment.size(); at = environment.find('\0', at) + 1) {
    if (environment.compare(at, mark.size(), mark) == 0) {
      return environment.c_str() + at + mark.size();
    }
    if (environment.find('\0', at) == std::string::npos) break;
  }
  return "";
}

// The letter after the name, which may hold anything.
bool is_stopped(const std::string& stat) {
  const std::size_t end = stat.rfind(") ");
  return end != std::string::npos && end + 2 < stat.size() &&
         (stat[end + 2] == 'T' || stat[end + 2] == 't');
}

}  // namespace

JoinWatch::JoinWatch(std::chrono::milliseconds timeout, std::function<void()> late) {
  if (!late) return;
  thread_ = start_thread("that waits for processes to join", [this, timeout, late] {
    std::unique_lock lock(mutex_);
    if (!changed_.wait_for(lock, timeout, [this] { return over_; })) late();
  });
}

JoinWatch::~JoinWatch() {
  {
    const std::lock_guard lock(mutex_);
    over_ = true;
  }
  changed_.notify_all();
  if (thread_.joinable()) thread_.join();
}

std::vector<Neighbour> neighbours(const std::string& job) {
  std::map<int, Neighbour> found;  // a shell that has started a process has its environment, too
  std::error_code gone;
  for (const auto& entry : fs::directory_iterator("/proc", gone)) {
    const int id = std::atoi(entry.path().filename().c_str());
    if (id <= 0) continue;
    const std::string environment = content(entry.path() / "environ");
    const std::string number = variable(environment, "OMPI_COMM_WORLD_RANK");
    if (number.empty() || variable(environment, "PMIX_NAMESPACE") != job) continue;
    const bool stopped = is_stopped(content(entry.path() / "stat"));
    Neighbour& neighbour = found[std::atoi(number.c_str())];
    if (neighbour.id == 0 || stopped) neighbour = {std::atoi(number.c_str()), id, stopped};
  }
  std::vector<Neighbour> all;
  for (const auto& [number, neighbour] : found) all.push_back(neighbour);
  return all;
}

std::string late_text(int own, const std::string& host, double seconds,
                      const std::vector<Neighbour>& neighbours) {
  std::string stopped;
  for (const Neighbour& neighbour : neighbours) {
    if (neighbour.stopped) {
      stopped += fmt::format("{}process {} (process id {} on this machine)",
                             stopped.empty() ? "" : ", ", neighbour.process, neighbour.id);
    } else if (neighbour.process < own) {
      return "";
    }
  }
  return fmt::format(
      "process {} on {} waited {} s for the others to join: {}.", own, host, seconds,
      stopped.empty()
          ? "none on this machine is stopped, so another one is slow, or its machine "
            "doesn't answer"
          : stopped + (stopped.find(", ") == std::string::npos ? " is stopped" : " are stopped"));
}

}  // namespace sherd::sharding
