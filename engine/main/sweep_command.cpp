#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>

#include "checkpoint/store/disk.h"
#include "core/error.h"
#include "engine/main/command_line.h"
#include "engine/main/commands.h"
#include "engine/main/own_program.h"
#include "engine/main/standard_streams.h"
#include "engine/run/sweep.h"

namespace sherd::main {
namespace {

using engine::SweepPoint;
using engine::SweepRun;

constexpr int kRequeue = 75, kInterrupted = 130, kSignalled = 128;

std::atomic<pid_t> child{0};
std::atomic<int> stop_signal{0};  // the first that asked for an end

// Ctrl-C reaches the child from the terminal. kill() is among the few calls that a signal handler may
// make.
extern "C" void pass_on(int signal) {
  int none = 0;
  if (signal != SIGUSR2) stop_signal.compare_exchange_strong(none, signal);
  const pid_t process = child;
  if (signal != SIGINT && process > 0) ::kill(process, signal);
}

void listen() {
  for (const int signal : {SIGINT, SIGTERM, SIGUSR1, SIGUSR2, SIGHUP}) {
    struct sigaction action {};
    SHERD_CHECK(::sigaction(signal, nullptr, &action) == 0);
    if (action.sa_handler == SIG_IGN) continue;  // nohup
    action.sa_handler = pass_on;
    action.sa_flags = SA_RESTART;
    sigemptyset(&action.sa_mask);
    SHERD_CHECK(::sigaction(signal, &action, nullptr) == 0);
  }
}

[[noreturn]] void become(char* const* words, pid_t parent, const sigset_t& mask) {
  ::prctl(PR_SET_PDEATHSIG, SIGTERM);  // a run of a sweep that was killed saves and ends
  for (const int signal : {SIGINT, SIGTERM, SIGUSR1, SIGUSR2, SIGHUP}) {
    struct sigaction action {};
    ::sigaction(signal, nullptr, &action);
    // Until the program has its own handlers, a request for a checkpoint must not end it.
    if (action.sa_handler != SIG_IGN) ::signal(signal, signal == SIGUSR2 ? SIG_IGN : SIG_DFL);
  }
  if (::getppid() != parent) ::_exit(kSignalled + SIGTERM);
  ::sigprocmask(SIG_SETMASK, &mask, nullptr);
  ::execv(words[0], words);
  ::_exit(127);
}

// Its exit code; 128 + the signal that killed it.
int run_child(std::vector<std::string> words) {
  std::vector<char*> arguments;
  for (std::string& word : words) arguments.push_back(word.data());
  arguments.push_back(nullptr);
  const pid_t own = ::getpid();
  sigset_t all, before;  // a signal comes either before the fork, or when there is a child
  sigfillset(&all);
  ::sigprocmask(SIG_SETMASK, &all, &before);
  const pid_t process = ::fork();
  if (process == 0) become(arguments.data(), own, before);
  child = process;
  ::sigprocmask(SIG_SETMASK, &before, nullptr);
  SHERD_CHECK(process > 0, "fork: {}", std::strerror(errno));
  int status = 0;
  while (::waitpid(process, &status, 0) < 0) {
    SHERD_CHECK(errno == EINTR, "waitpid: {}", std::strerror(errno));
  }
  child = 0;
  return WIFEXITED(status) ? WEXITSTATUS(status) : kSignalled + WTERMSIG(status);
}

void say(const std::string& line) {
  fmt::print("{}\n", line);
  std::fflush(stdout);
}

class SweepCommand {
 public:
  explicit SweepCommand(CLI::App& command) { add_recipe(command, request_)->required(); }
  /// Runs of a combination that the recipe's rules refuse fail like others. If all are refused, so
  /// is the sweep. A run that is stopped (code 75 or 130) ends the sweep with its code. Otherwise the
  /// code is that of the first run that failed.
  int run() const;

 private:
  struct Planned {
    SweepRun run;
    engine::RecipeRequest request;
    std::optional<engine::ResolvedRecipe> recipe;  ///< none: it is refused
  };
  std::vector<Planned> plan() const;
  int train(const engine::RecipeRequest& request) const;

  engine::RecipeRequest request_;
};

// With the recipe of the first point that has one, which names the folder.
std::vector<SweepCommand::Planned> SweepCommand::plan() const {
  const std::vector<SweepPoint> points = engine::sweep_points(request_.sets);
  std::optional<engine::ResolvedRecipe> base;
  std::exception_ptr refusal;
  for (std::size_t i = 0; i < points.size() && !base; ++i) {
    engine::RecipeRequest request = request_;
    request.sets = points[i].sets;
    try {
      base = engine::resolve_recipe(request);
    } catch (const UsageError&) {
      if (!refusal) refusal = std::current_exception();
    }
  }
  if (!base) std::rethrow_exception(refusal);
  std::vector<Planned> planned;
  for (const SweepPoint& point : points) {
    Planned next{{point, base->values.run.output_dir + "/" + point.name},
                 engine::request_of(request_, *base, point),
                 {}};
    try {
      next.recipe = engine::resolve_recipe(next.request);
    } catch (const UsageError&) {  // `train` reports it
    }
    planned.push_back(std::move(next));
  }
  return planned;
}

int SweepCommand::train(const engine::RecipeRequest& request) const {
  std::vector<std::string> words = {own_path(), "train", request.path};
  for (const std::string& set : request.sets) words.insert(words.end(), {"--set", set});
  if (request.ranks) words.insert(words.end(), {"--ranks", std::to_string(*request.ranks)});
  return run_child(std::move(words));
}

std::vector<SweepRun> runs_of(const auto& planned) {
  std::vector<SweepRun> runs;
  for (const auto& each : planned) runs.push_back(each.run);
  return runs;
}

// The code of a sweep whose runs have ended, and a line about those that failed.
int report_failures(const std::vector<SweepRun>& runs) {
  std::string failed;
  int first = 0, count = 0;
  for (const SweepRun& run : runs) {
    const int code = run.exit_code.value_or(0);
    if (code == 0) continue;
    if (first == 0) first = code;
    failed += fmt::format("{}{} (code {})", count++ == 0 ? "" : ", ", run.point.name, code);
  }
  if (count > 0) {
    print_error(fmt::format("sherd: {} of {} runs failed: {}", count, runs.size(), failed));
  }
  return first;
}

int SweepCommand::run() const {
  if (std::getenv("OMPI_COMM_WORLD_SIZE") != nullptr) {
    throw UsageError(
        "a sweep starts its runs itself, in one process each; use --ranks instead of `sherd "
        "launch`.");
  }
  std::vector<Planned> planned = plan();
  checkpoint::Disk& disk = checkpoint::posix_disk();
  const std::string folder = std::filesystem::path(planned[0].run.folder).parent_path().string();
  const std::string file = folder + "/sweep.json";
  const std::string before = checkpoint::exists(disk, file)
                                 ? checkpoint::read_file(disk, file, std::int64_t{1} << 26)
                                 : "";
  // All of them first: what sweep.json knows must outlive the first run that is written there.
  for (auto& [run, request, recipe] : planned) {
    run.was_done = recipe && engine::is_done(before, run.folder, *recipe);
    if (run.was_done) run.exit_code = 0;
  }
  listen();
  int stop_code = 0;
  for (std::size_t i = 0; i < planned.size() && stop_signal == 0 && stop_code == 0; ++i) {
    auto& [run, request, recipe] = planned[i];
    say(fmt::format("run {} of {}: {}{}", i + 1, planned.size(), run.point.name,
                    run.was_done ? ", done before" : ""));
    const int code = run.was_done ? 0 : train(request);
    if (code == kRequeue || code == kInterrupted) stop_code = code;
    if (stop_code == 0) run.exit_code = code;
    std::filesystem::create_directories(folder);
    checkpoint::replace_file(disk, file, engine::sweep_json(runs_of(planned)));
  }
  const std::vector<SweepRun> runs = runs_of(planned);
  fmt::print("{}", engine::sweep_text(runs));
  const int code = report_failures(runs);
  const bool all_ended = std::ranges::all_of(runs, [](const SweepRun& r) { return !!r.exit_code; });
  if (all_ended) return code;
  if (stop_code == 0) stop_code = stop_signal == SIGINT ? kInterrupted : kRequeue;
  print_error(fmt::format("sherd: the sweep was stopped{}",
                          stop_code == kRequeue ? "; start it again" : ""));
  return stop_code;
}

}  // namespace

Command sweep_command(CLI::App& program) {
  return make_command<SweepCommand>(program, "sweep",
                                    "Train a recipe with every combination of listed values");
}

}  // namespace sherd::main
