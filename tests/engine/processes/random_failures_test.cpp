// Failures at random moments of random worlds: a process is killed, crashes or is stopped, or one of its ranks
// makes no progress. Each is found and named, no process is left, and the checkpoints are whole.
// SHERD_FAILURES=FIRST..END runs some of them.
#include <fmt/core.h>
#include <signal.h>

#include <chrono>
#include <thread>

#include "checkpoint/inspect.h"
#include "checkpoint/store/committed.h"
#include "tests/engine/processes/failure_series.h"
#include "tests/engine/processes/hold.h"
#include "tests/engine/processes/mpi_runs.h"
#include "tests/support/random/random_value.h"
#include "tests/where.h"

namespace sherd::testing {
namespace {

struct Failure {
  ProcessWorld world;
  int stage = 0, victim = 0, step = 1;
  std::string what;
  std::chrono::microseconds later{};  ///< than the step's line

  explicit Failure(int number) {
    Random random(static_cast<std::uint64_t>(number));
    world = {static_cast<int>(random.whole(2, 3)), static_cast<int>(random.whole(1, 2))};
    stage = static_cast<int>(random.whole(0, 3));
    victim = static_cast<int>(random.whole(0, world.num_processes - 1));
    step = static_cast<int>(random.whole(1, 9));
    what = random.one_of({"killed", "crashed", "stopped", "held"});
    later = std::chrono::microseconds(random.whole(0, 20'000));
  }
  std::string text() const {
    return fmt::format("{} processes, stage {}: process {} {} at step {}", world.name(), stage,
                       victim, what, step);
  }
  bool kills() const { return what == "killed" || what == "crashed"; }
  int signal() const { return what == "killed" ? SIGKILL : what == "crashed" ? SIGSEGV : SIGSTOP; }
};

class RandomFailuresSlow : public ProcessesTest {
 protected:
  // Returns how long the run took to end.
  Seconds run(const Failure& failure, const std::string& output) {
    SCOPED_TRACE(failure.text());
    const TrainingRun recipe{.stage = failure.stage,
                             .precision = "",
                             .optimizer = "adamw",
                             .accumulation = "gradient_accumulation_steps: 1",
                             .interval = 3};
    std::vector<std::string> words = launch_words(folder_, output, recipe, failure.world);
    words.insert(words.end(), {"--set", "training.max_steps=1000000", "--set", "run.peer_timeout=2",
                               "--set", "metrics.log_interval=1"});
    const std::string word = folder_.file(output + ".yaml");
    Hold hold;
    bool acted = false;
    std::chrono::steady_clock::time_point began;
    const auto outcome =
        test::run_program(SHERD_PROGRAM, words, [&](pid_t, const std::string& line) {
          if (acted || !line.starts_with(fmt::format("step {}/", failure.step))) return;
          acted = true;
          std::this_thread::sleep_for(failure.later);
          began = std::chrono::steady_clock::now();
          const pid_t process = process_of_world(failure.victim, word);
          if (failure.what == "held") return hold.thread_of(process);
          ::kill(process, failure.signal());
        });
    const Seconds took = std::chrono::steady_clock::now() - began;
    EXPECT_TRUE(acted) << outcome.out << outcome.err;
    EXPECT_TRUE(outcome.exit_code == 4 ||
                (failure.kills() && outcome.exit_code == 128 + failure.signal()))
        << outcome.exit_code << ": " << outcome.err;
    bool is_named = false;  // any of its ranks
    const int each = failure.world.ranks_per_process;
    for (int r = failure.victim * each; r < (failure.victim + 1) * each; ++r) {
      is_named = is_named || outcome.err.find(fmt::format("rank {}", r)) != std::string::npos ||
                 outcome.err.find(fmt::format("ranks {} to", r)) != std::string::npos;
    }
    EXPECT_TRUE(is_named) << outcome.err;
    expect_nobody_is_left(word);
    expect_whole_checkpoints(output);
    return took;
  }

  void expect_nobody_is_left(const std::string& word) {
    for (int i = 0; i < 3000 && count_processes(word) > 0; ++i) {
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
    EXPECT_EQ(count_processes(word), 0);
  }

  void expect_whole_checkpoints(const std::string& output) {
    auto& disk = checkpoint::posix_disk();
    const std::string folder = folder_.file(output + "/checkpoints");
    for (const std::int64_t step : checkpoint::committed_steps(disk, folder)) {
      const checkpoint::Checkpoint saved(disk,
                                         folder + "/" + checkpoint::step_directory_name(step));
      EXPECT_FALSE(checkpoint::tensor_digests(saved).empty());
    }
  }
};

TEST_F(RandomFailuresSlow, AreFoundAndNamedAndLeaveNobodyBehind) {
  run_failures(200, [&](int number) -> SeenFailure {
    const Failure failure(number);
    return {failure.what, failure.text(), run(failure, fmt::format("run{}", number))};
  });
}

}  // namespace
}  // namespace sherd::testing
