#include "engine/launch/link_rates.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <map>
#include <memory>

#include "core/error.h"
#include "core/stream.h"
#include "engine/launch/system_info.h"
#include "sharding/comm/communicator.h"

namespace sherd::engine {
namespace {

constexpr std::int64_t kLargeSlice = 8 << 20;  // bytes
constexpr int kSmallRounds = 50, kLargeRounds = 9;
constexpr std::chrono::seconds kPatience{60};

double median(std::vector<double> values) {
  std::ranges::sort(values);
  return values[values.size() / 2];
}

// Gathers in one group, by this process's rank.
class Gathers {
 public:
  Gathers(sharding::Rendezvous& rendezvous, const sharding::Group& group)
      : communicator_(rendezvous.join(group)),
        stream_(make_cpu_worker_stream({.name = "links", .rank = group.world_rank(), .hook = {}})),
        bytes_(static_cast<std::size_t>(kLargeSlice * group.size())),
        size_(group.size()) {}

  // Median seconds with slices of `bytes`.
  double seconds(std::int64_t bytes, int rounds) {
    const Tensor full{bytes_.data(), DType::kU8, bytes * size_};
    std::vector<double> all;
    for (int round = 0; round <= rounds; ++round) {
      communicator_->barrier(*stream_, "links");
      stream_->synchronize();
      const auto begin = std::chrono::steady_clock::now();
      communicator_->all_gather(*stream_, "links", full);
      stream_->synchronize();
      const std::chrono::duration<double> taken = std::chrono::steady_clock::now() - begin;
      if (round > 0) all.push_back(taken.count());  // the first connects
    }
    return median(std::move(all));
  }

 private:
  std::unique_ptr<sharding::Communicator> communicator_;
  std::unique_ptr<Stream> stream_;
  std::vector<std::uint8_t> bytes_;
  int size_;
};

LinkRate rate_of(sharding::Rendezvous& rendezvous, const sharding::Group& group) {
  Gathers gathers(rendezvous, group);
  LinkRate rate{.ranks = group.size()};
  const double small = gathers.seconds(8, kSmallRounds);
  const double large = gathers.seconds(kLargeSlice, kLargeRounds);
  const std::int64_t others = group.size() - 1;
  rate.latency = small / static_cast<double>(others);
  rate.bandwidth = static_cast<double>(kLargeSlice * others) / std::max(1e-9, large - small);
  return rate;
}

// The slowest of all processes.
LinkRate agreed(sharding::Processes& processes, const char* what, LinkRate own) {
  const auto all = processes.links().all_gather(
      what, fmt::format("{:.17g} {:.17g}", own.bandwidth, own.latency));
  for (const std::string& text : all) {
    const std::size_t space = text.find(' ');
    own.bandwidth = std::min(own.bandwidth, std::stod(text));
    own.latency = std::max(own.latency, std::stod(text.substr(space)));
  }
  return own;
}

std::int64_t agreed_memory(sharding::Processes& processes) {
  const std::int64_t own = usable_memory_bytes() / processes.num_on_this_host();
  std::int64_t least = own;
  for (const std::string& text :
       processes.links().all_gather("memory of ranks", std::to_string(own))) {
    least = std::min<std::int64_t>(least, std::stoll(text));
  }
  return least;
}

// The processes of each machine, machines in the order of their first process.
std::vector<std::vector<int>> processes_of_machines(const sharding::Processes& processes) {
  std::map<int, std::vector<int>> of_machine;
  const std::vector<int> machines = processes.machines();
  for (std::size_t process = 0; process < machines.size(); ++process) {
    of_machine[machines[process]].push_back(static_cast<int>(process));
  }
  std::vector<std::vector<int>> result;
  for (const auto& [number, members] : of_machine) result.push_back(members);
  for (const auto& members : result) {
    if (members.size() == result[0].size()) continue;
    throw UsageError("{} has {} processes, and {} has {}; links are measured with equally many.",
                     processes.hosts()[static_cast<std::size_t>(result[0][0])], result[0].size(),
                     processes.hosts()[static_cast<std::size_t>(members[0])], members.size());
  }
  return result;
}

}  // namespace

LinkRates measure_links(sharding::Processes& processes) {
  const auto machines = processes_of_machines(processes);
  const int own = processes.index();
  LinkRates rates{.machines = static_cast<int>(machines.size()),
                  .ranks_per_machine = static_cast<int>(machines[0].size()),
                  .memory_bytes = agreed_memory(processes)};
  const auto rendezvous = processes.make_rendezvous(1, kPatience);
  std::size_t place = 0;  // on its machine
  sharding::Group within{"links within", {}}, between{"links between", {}};
  for (std::size_t machine = 0; machine < machines.size(); ++machine) {
    const auto found = std::ranges::find(machines[machine], own);
    if (found == machines[machine].end()) continue;
    place = static_cast<std::size_t>(found - machines[machine].begin());
    within.name += fmt::format(" {}", machine);
    within.ranks = machines[machine];
    within.index = static_cast<int>(place);
    between.index = static_cast<int>(machine);
  }
  for (const auto& members : machines) between.ranks.push_back(members[place]);
  between.name += fmt::format(" {}", place);
  if (rates.ranks_per_machine > 1) {
    rates.within = agreed(processes, "links within", rate_of(*rendezvous, within));
  }
  if (rates.machines > 1) {
    rates.between = agreed(processes, "links between", rate_of(*rendezvous, between));
  }
  return rates;
}

std::string cluster_text(const LinkRates& rates) {
  std::string text =
      fmt::format("machines: {}\nranks_per_machine: {}\ndevice: cpu\nmemory: {}MiB\n",
                  rates.machines, rates.ranks_per_machine, rates.memory_bytes >> 20);
  const auto add = [&text](const char* name, const std::optional<LinkRate>& rate) {
    if (!rate) return;
    const double mb = rate->bandwidth / 1e6;
    text +=
        fmt::format("{}: {{bandwidth: {:.{}f}MB, latency_us: {:.1f}}}  # of a gather by {} ranks\n",
                    name, mb, mb < 100.0 ? 2 : 0, rate->latency * 1e6, rate->ranks);
  };
  add("within", rates.within);
  add("between", rates.between);
  return text;
}

}  // namespace sherd::engine
