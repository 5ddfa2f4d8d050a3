#include "engine/main/world.h"

#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <thread>

#include "core/error.h"
#include "engine/launch/early_stop.h"
#include "engine/launch/rank_watch.h"
#include "engine/main/command_line.h"
#include "engine/main/failure.h"
#include "engine/main/standard_streams.h"
#include "sharding/processes/environment.h"
#include "sharding/processes/mpi.h"

namespace sherd::main {
namespace {

using sharding::ProcessEnd;
using std::chrono::milliseconds;

constexpr std::chrono::seconds kToConnect{60}, kToConnectMachines{300}, kForLastWords{3};
constexpr int kPeer = 4, kRequeue = 75, kInterrupted = 130;

bool is_stop(int exit_code) {
  return exit_code == kRequeue || exit_code == kInterrupted;
}

std::string joined(const std::vector<std::string>& lines) {
  std::string text;
  for (const std::string& line : lines) text += (text.empty() ? "" : "\n") + line;
  return text;
}

void print(const std::string& message, const std::string& label) {
  for (std::size_t begin = 0; begin <= message.size();) {
    const std::size_t end = std::min(message.size(), message.find('\n', begin));
    print_error("sherd: " + label + message.substr(begin, end - begin));
    begin = end + 1;
  }
}

// Whether process `own` is the one to print its message.
bool says_why(const std::vector<std::optional<ProcessEnd>>& ends, std::size_t own,
              const ProcessEnd& end) {
  for (std::size_t process = 0; process < own; ++process) {
    if (!ends[process] || ends[process]->exit_code == 0) continue;
    if (end.consequence ? ends[process]->consequence : ends[process]->message == end.message) {
      return false;
    }
  }
  return true;
}

bool all_say(const std::vector<std::optional<ProcessEnd>>& ends, const std::string& message) {
  return std::all_of(ends.begin(), ends.end(),
                     [&](const auto& end) { return end && end->message == message; });
}

bool is_failure(const ProcessEnd& end) {
  return end.exit_code != 0 && !end.consequence && !is_stop(end.exit_code);
}

// Whether process `own` is the first of those that were asked to stop.
bool speaks_of_stop(const std::vector<std::optional<ProcessEnd>>& ends, std::size_t own) {
  return std::none_of(ends.begin(), ends.begin() + static_cast<std::ptrdiff_t>(own),
                      [](const auto& end) { return end && is_stop(end->exit_code); });
}

// All processes of a stopped run use rank 0's exit code: its end may look like a failure to ranks
// that were about to leave.
int stop_code(const std::vector<std::optional<ProcessEnd>>& ends) {
  int code = 0;
  for (const auto& end : ends) {
    if (!end || is_failure(*end)) return 0;
    if (is_stop(end->exit_code)) code = end->exit_code;
  }
  return code;
}

bool by_mpirun() {
  return std::getenv("OMPI_COMM_WORLD_SIZE") != nullptr;
}

// `death_is_said`: this process has printed who has died.
int leave(sharding::Processes& processes, ProcessEnd end, const std::string& label,
          const std::atomic<bool>& death_is_said) {
  // mpirun sends it as soon as one process has failed, while another may have something to print.
  ::signal(SIGTERM, SIG_IGN);
  if (is_failure(end)) processes.links().abort(label + end.message);
  const bool aborted_before = processes.links().aborted();
  // Processes that have succeeded wait for the others, however long these write.
  const auto ends =
      processes.end(end, aborted_before ? milliseconds(kForLastWords) : std::chrono::hours(24));
  const auto own = static_cast<std::size_t>(processes.index());
  if (const int code = stop_code(ends)) {
    if (is_stop(end.exit_code) && speaks_of_stop(ends, own)) print(end.message, "");
    // mpirun kills the others, and loses what they print, a second after the first has ended.
    processes.links().say("printed", "");
    processes.links().heard("printed", kForLastWords);
    return code;
  }
  // MPI only ends after every process has sent its last message, since it waits for all.
  const bool all_are_here =
      std::all_of(ends.begin(), ends.end(), [](const auto& x) { return !!x; });
  if (!processes.links().aborted() && all_are_here) {
    sharding::finish_mpi();
    return end.exit_code;
  }
  if (!aborted_before && end.exit_code == 0) {  // one has died while the others waited for its word
    const auto first = std::find_if(ends.begin(), ends.end(), [](const auto& x) { return !!x; });
    if (first - ends.begin() == processes.index() && !death_is_said) {
      print(processes.links().reason(), "");
    }
    return kPeer;
  }
  // Other processes report their own failures.
  const bool reason_is_said =
      end.consequence && std::any_of(ends.begin(), ends.end(),
                                     [](const auto& other) { return other && is_failure(*other); });
  // Processes that gave up on this one have printed why; all of mpirun's processes print to one
  // place.
  const bool given_up = processes.links().given_up() && by_mpirun();
  const bool is_said = end.consequence && (reason_is_said || death_is_said || given_up);
  if (end.exit_code != 0 && says_why(ends, own, end) && !is_said) {
    print(end.message, end.consequence || all_say(ends, end.message) ? "" : label);
  }
  // mpirun returns the code of the first that ends: the one with a reason of its own.
  if (!is_failure(end)) std::this_thread::sleep_for(milliseconds(300));
  return end.exit_code != 0 ? end.exit_code : kPeer;
}

// While processes join, other processes can't be notified.
void end_late(const std::string& sentence) {
  if (!sentence.empty()) print(sentence, "");
  std::_Exit(kPeer);
}

// With Slurm, PMIx may exist alongside RANK and WORLD_SIZE; these decide. Under mpirun they may be
// another launcher's, and aren't looked at.
std::optional<sharding::EnvironmentWorld> world_of_variables() {
  return by_mpirun() ? std::nullopt : sharding::environment_world();
}

}  // namespace

int num_processes() {
  const auto world = world_of_variables();
  return world ? world->num_processes : sharding::num_processes_started();
}

std::unique_ptr<sharding::Processes> other_processes(milliseconds patience) {
  if (const auto world = world_of_variables()) {
    return sharding::join_environment(*world, kToConnectMachines);
  }
  return sharding::join_mpi(kToConnect, {.for_mpi = std::max<milliseconds>(kToConnect, patience),
                                         .late = end_late,
                                         .connecting = engine::note_early_stops});
}

// A thread that computes or waits forever can't be ended, so the process exits at once. For its
// files, this is like any other crash.
[[noreturn]] void end_without(const std::string& ranks, const std::exception_ptr& error) {
  const Failure failure = failure_of(error);
  print(joined(failure.lines), "");
  print(fmt::format("{} didn't come to an end within {} s of that, and is left as it is.", ranks,
                    engine::RankWatch::kForOthers.count() / 1000),
        "");
  std::_Exit(failure.exit_code);
}

int run_with_others(const std::shared_ptr<sharding::Processes>& processes,
                    milliseconds peer_timeout, const std::function<void()>& body) {
  sharding::ControlLinks& links = processes->links();
  links.set_timeout(peer_timeout);
  // Some read their data for long.
  links.set_patience(std::max<milliseconds>(peer_timeout, sharding::kDefaultPeerTimeout));
  const auto death_is_said = std::make_shared<std::atomic<bool>>(false);
  links.on_death([death_is_said](const std::string& reason) {
    if (!death_is_said->exchange(true)) print(reason, "");
  });
  const std::string label =
      fmt::format("process {} on {}: ", processes->index(),
                  processes->hosts()[static_cast<std::size_t>(processes->index())]);
  std::atomic_flag leaves;
  const engine::EarlyStop early_stop(
      links, engine::EarlyStop::of_this_process([&](const ProcessEnd& end) {
        if (leaves.test_and_set()) return;
        const int code = leave(*processes, end, label, *death_is_said);
        std::fflush(nullptr);
        std::_Exit(code);
      }));
  ProcessEnd end;
  try {
    body();
  } catch (...) {
    const Failure failure = failure_of(std::current_exception());
    end = {failure.exit_code, joined(failure.lines), failure.exit_code == kPeer && links.aborted()};
  }
  while (leaves.test_and_set()) ::pause();  // the other thread ends the process
  return leave(*processes, end, label, *death_is_said);
}

int in_world(const std::function<void(const std::shared_ptr<sharding::Processes>&)>& body) {
  if (num_processes() <= 1) {
    body(nullptr);
    return 0;
  }
  const std::shared_ptr<sharding::Processes> processes =
      other_processes(sharding::kDefaultPeerTimeout);
  return run_with_others(processes, sharding::kDefaultPeerTimeout, [&] { body(processes); });
}

std::optional<std::int64_t> ranks_or_processes(
    const std::optional<std::int64_t>& given,
    const std::shared_ptr<sharding::Processes>& processes) {
  return given || !processes ? given : processes->count();
}

void require_file_of_all(const std::shared_ptr<sharding::Processes>& processes,
                         const std::string& path, std::string_view option) {
  if (processes && path == "-") {
    throw UsageError(
        "{} is -, but only the first of several processes has standard input. Name a file.",
        option);
  }
}

bool speaks(const std::shared_ptr<sharding::Processes>& processes) {
  return processes == nullptr || processes->index() == 0;
}

}  // namespace sherd::main
