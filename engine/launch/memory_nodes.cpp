#include "engine/launch/memory_nodes.h"

#include <fmt/format.h>
#include <sched.h>

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <fstream>
#include <iterator>

namespace sherd::engine {
namespace {

namespace fs = std::filesystem;

// Takes a number off the front of the text; -1 if there is none.
int take_number(std::string_view& text) {
  int value = -1;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc()) return -1;
  text.remove_prefix(static_cast<std::size_t>(end - text.data()));
  return value;
}

std::string first_line(const fs::path& file) {
  std::ifstream in(file);
  std::string line;
  std::getline(in, line);
  return line;
}

}  // namespace

std::vector<int> cores_of_list(std::string_view text) {
  std::vector<int> cores;
  while (!text.empty()) {
    const int first = take_number(text);
    int last = first;
    if (text.starts_with('-')) {
      text.remove_prefix(1);
      last = take_number(text);
    }
    if (first < 0 || last < first || last >= CPU_SETSIZE) return {};
    for (int core = first; core <= last; ++core) cores.push_back(core);
    if (text.starts_with(',')) {
      text.remove_prefix(1);
    } else if (!text.empty()) {
      return {};
    }
  }
  return cores;
}

std::string list_of_cores(const std::vector<int>& cores) {
  std::string text;
  for (std::size_t i = 0; i < cores.size();) {
    std::size_t end = i + 1;
    while (end < cores.size() && cores[end] == cores[end - 1] + 1) ++end;
    if (!text.empty()) text += ',';
    text +=
        end == i + 1 ? fmt::format("{}", cores[i]) : fmt::format("{}-{}", cores[i], cores[end - 1]);
    i = end;
  }
  return text;
}

std::vector<MemoryNode> memory_nodes(const std::string& folder, const std::vector<int>& usable) {
  std::vector<MemoryNode> nodes;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(folder, error)) {
    const std::string name = entry.path().filename().string();
    if (!name.starts_with("node")) continue;
    std::string_view rest = std::string_view(name).substr(4);
    const int number = take_number(rest);
    if (number < 0 || !rest.empty()) continue;
    MemoryNode node{.number = number, .cores = {}};
    for (const int core : cores_of_list(first_line(entry.path() / "cpulist"))) {
      if (std::binary_search(usable.begin(), usable.end(), core)) node.cores.push_back(core);
    }
    if (!node.cores.empty()) nodes.push_back(std::move(node));
  }
  std::sort(nodes.begin(), nodes.end(),
            [](const MemoryNode& a, const MemoryNode& b) { return a.number < b.number; });
  return nodes;
}

std::vector<MemoryNode> memory_nodes() {
  return memory_nodes("/sys/devices/system/node", cores_of_this_thread());
}

int node_of_rank(const std::vector<MemoryNode>& nodes, int rank, int num_ranks) {
  const auto count = static_cast<int>(nodes.size());
  if (count < 2 || num_ranks % count != 0) return -1;
  for (const MemoryNode& node : nodes) {
    if (node.cores.size() != nodes[0].cores.size()) return -1;
  }
  return rank / (num_ranks / count);
}

std::vector<int> cores_of_this_thread() {
  cpu_set_t set;
  CPU_ZERO(&set);
  // Fails on machines with more cores than the set holds.
  if (sched_getaffinity(0, sizeof set, &set) != 0) return {};
  std::vector<int> cores;
  for (int core = 0; core < CPU_SETSIZE; ++core) {
    if (CPU_ISSET(static_cast<std::size_t>(core), &set)) cores.push_back(core);
  }
  return cores;
}

void run_on_cores(const std::vector<int>& cores) {
  if (cores.empty()) return;
  cpu_set_t set;
  CPU_ZERO(&set);
  for (const int core : cores) CPU_SET(static_cast<std::size_t>(core), &set);
  static_cast<void>(sched_setaffinity(0, sizeof set, &set));
}

KeptCores::KeptCores() : cores_(cores_of_this_thread()) {}

KeptCores::~KeptCores() {
  run_on_cores(cores_);
}

}  // namespace sherd::engine
