#include "sharding/processes/processes.h"

#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <sstream>

#include "core/error.h"

namespace sherd::sharding {

int Processes::num_on_this_host() const {
  const std::string& own = hosts_[static_cast<std::size_t>(index())];
  return static_cast<int>(std::count(hosts_.begin(), hosts_.end(), own));
}

std::vector<int> Processes::machines() const {
  std::vector<int> numbers;
  for (const std::string& host : hosts_) {
    numbers.push_back(
        static_cast<int>(std::find(hosts_.begin(), hosts_.end(), host) - hosts_.begin()));
  }
  return numbers;
}

int Processes::index_on_this_host() const {
  const auto own = hosts_.begin() + index();
  return static_cast<int>(std::count(hosts_.begin(), own, *own));
}

std::string host_name() {
  char name[256] = {};
  return ::gethostname(name, sizeof name - 1) == 0 && name[0] != '\0' ? name : "localhost";
}

void Processes::learn_hosts() {
  hosts_ = links_->all_gather("the names of machines", host_name());
  std::vector<std::string> names;
  for (std::size_t process = 0; process < hosts_.size(); ++process) {
    names.push_back(fmt::format("process {} on {}", process, hosts_[process]));
  }
  links_->set_names(std::move(names));
}

std::vector<std::optional<ProcessEnd>> Processes::end(const ProcessEnd& own,
                                                      std::chrono::milliseconds patience) {
  links_->say("end", fmt::format("{} {} {}", own.exit_code, own.consequence ? 1 : 0, own.message));
  const auto words = links_->heard("end", patience);
  links_->part();
  std::vector<std::optional<ProcessEnd>> ends(static_cast<std::size_t>(count()));
  for (std::size_t process = 0; words && process < ends.size(); ++process) {
    if (!(*words)[process]) continue;
    std::istringstream text(*(*words)[process]);
    ProcessEnd& end = ends[process].emplace();
    text >> end.exit_code >> end.consequence;
    text.get();
    std::getline(text, end.message, '\0');
  }
  return ends;
}

int num_processes_started() {
  const auto number = [](const char* name) {
    const char* text = std::getenv(name);
    return text ? std::atoi(text) : 0;
  };
  if (const int count = number("OMPI_COMM_WORLD_SIZE"); count > 0) return count;
  // srun's name for it, in an environment that PMIx has set up: without it MPI can't start.
  if (std::getenv("PMIX_RANK")) return std::max(1, number("SLURM_NTASKS"));
  return 1;
}

std::string name_of_ranks(int first, int count, const std::string& host) {
  return count == 1 ? fmt::format("rank {} on {}", first, host)
                    : fmt::format("ranks {} to {} on {}", first, first + count - 1, host);
}

}  // namespace sherd::sharding
