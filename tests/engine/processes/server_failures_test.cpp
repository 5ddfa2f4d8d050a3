// Servers and workers in processes that are killed or stopped at every phase: while they join, in steps, while
// checkpoints are written. The run ends and names the rank, no process is left, and the run goes on to the bits of
// a run that nobody disturbed. SHERD_FAILURES=FIRST..END runs some of them.
#include <fmt/core.h>
#include <signal.h>

#include <chrono>
#include <map>
#include <thread>
#include <vector>

#include "tests/engine/processes/failure_series.h"
#include "tests/engine/processes/mpi_runs.h"
#include "tests/support/random/random_value.h"
#include "tests/where.h"

namespace sherd::testing {
namespace {

constexpr int kManySteps = 60;

struct ServerFailure {
  int workers = 1, servers = 1, stage = 1, victim = 0, step = 0;  // step 0: while it joins
  bool stops = false;
  std::chrono::microseconds later{};  // than the step's line, or than the process's beginning

  explicit ServerFailure(int number) {
    Random random(static_cast<std::uint64_t>(number));
    workers = static_cast<int>(random.whole(1, 2));
    servers = static_cast<int>(random.whole(1, 2));
    stage = static_cast<int>(random.whole(1, 3));
    victim = static_cast<int>(random.whole(0, workers + servers - 1));
    stops = number % 3 == 2;
    step = number % 4 == 0 ? 0 : static_cast<int>(random.whole(1, 20));
    later = std::chrono::microseconds(random.whole(0, step == 0 ? 300'000 : 20'000));
  }
  std::string text() const {
    return fmt::format("{} workers, {} servers, stage {}: {} {} {} {}", workers, servers, stage,
                       victim < workers ? "worker" : "server", victim, stops ? "stopped" : "killed",
                       step == 0 ? std::string("while joining") : fmt::format("at step {}", step));
  }
};

class ServerFailuresSlow : public ProcessesTest {
 protected:
  // A checkpoint at every step, so that many of them are under way at a failure.
  std::vector<std::string> train_words(const std::string& output, int workers, int stage) const {
    const TrainingRun run{.stage = stage,
                          .world = workers,
                          .precision = "mixed_precision: {param_dtype: bf16}",
                          .optimizer = "adamw",
                          .accumulation = "micro_batch_size: 1",
                          .interval = 1,
                          .mesh = "",
                          .zero = "grad_sync: every_micro_step"};
    folder_.write(output + ".yaml", recipe_text(folder_, output, run));
    return {"train", folder_.file(output + ".yaml"),
            "--set", fmt::format("training.max_steps={}", kManySteps),
            "--set", "metrics.log_interval=1",
            "--set", "run.peer_timeout=2"};
  }
  std::vector<std::string> words(const std::string& output, const ServerFailure& failure) const {
    std::vector<std::string> words = {"launch",
                                      "-n",
                                      std::to_string(failure.workers + failure.servers),
                                      "--servers",
                                      std::to_string(failure.servers),
                                      "--"};
    const auto train = train_words(output, failure.workers, failure.stage);
    words.insert(words.end(), train.begin(), train.end());
    return words;
  }
  const auto& undisturbed(int workers) {
    auto [at, is_new] = undisturbed_.try_emplace(workers);
    if (is_new) {
      const std::string output = fmt::format("undisturbed{}", workers);
      const auto outcome = test::run_program(SHERD_PROGRAM, train_words(output, workers, 1));
      EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
      at->second = state_after(folder_, output, kManySteps);
    }
    return at->second;
  }

  // Returns how long the others took to end.
  Seconds disturb(const ServerFailure& failure, const std::string& output) {
    const std::string word = folder_.file(output + ".yaml");
    const std::vector<std::string> launched = words(output, failure);
    std::chrono::steady_clock::time_point began;
    bool acted = false;
    const auto act = [&](pid_t process) {
      std::this_thread::sleep_for(failure.later);
      began = std::chrono::steady_clock::now();
      acted = ::kill(process, failure.stops ? SIGSTOP : SIGKILL) == 0;
    };
    std::thread joining;
    if (failure.step == 0) {
      joining = std::thread([&] {
        pid_t process = -1;
        for (int i = 0; i < 20'000 && process < 0; ++i) {
          std::this_thread::sleep_for(std::chrono::milliseconds(1));
          process = process_of_world(failure.victim, word);
        }
        act(process);
      });
    }
    const auto outcome =
        test::run_program(SHERD_PROGRAM, launched, [&](pid_t, const std::string& line) {
          if (acted || failure.step == 0) return;
          if (!line.starts_with(fmt::format("step {}/", failure.step))) return;
          act(process_of_world(failure.victim, word));
        });
    const Seconds took = std::chrono::steady_clock::now() - began;
    if (joining.joinable()) joining.join();
    EXPECT_TRUE(acted) << outcome.out << outcome.err;
    EXPECT_NE(outcome.exit_code, 0);
    // mpirun names a process that joins, the other ranks one that has joined.
    EXPECT_TRUE(outcome.err.find(fmt::format("rank {} ", failure.victim)) != std::string::npos ||
                outcome.err.find(fmt::format("process {} ", failure.victim)) != std::string::npos)
        << outcome.err;
    for (int i = 0; i < 3000 && count_processes(word) > 0; ++i) {
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
    EXPECT_EQ(count_processes(word), 0);
    return took;
  }

  void expect_nothing_lost(const ServerFailure& failure, const std::string& output) {
    const auto again = test::run_program(SHERD_PROGRAM, words(output, failure));
    EXPECT_EQ(again.exit_code, 0) << again.err;
    EXPECT_EQ(state_after(folder_, output, kManySteps), undisturbed(failure.workers));
  }

 private:
  std::map<int, std::vector<std::string>> undisturbed_;
};

TEST_F(ServerFailuresSlow, AreNamedAndLoseNothingAtAnyPhase) {
  run_failures(60, [&](int number) -> SeenFailure {
    const ServerFailure failure(number);
    SCOPED_TRACE(fmt::format("failure {}: {}", number, failure.text()));
    const std::string output = fmt::format("run{}", number);
    const Seconds took = disturb(failure, output);
    expect_nothing_lost(failure, output);
    return {fmt::format("{}{}", failure.stops ? "stopped" : "killed",
                        failure.step == 0 ? " while joining" : ""),
            failure.text(), took};
  });
}

}  // namespace
}  // namespace sherd::testing
