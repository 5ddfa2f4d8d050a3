// SIGUSR2 to a run of several processes: one signal is one checkpoint, wherever it arrives.
#include <signal.h>

#include <nlohmann/json.hpp>
#include <sstream>

#include "tests/engine/processes/mpi_runs.h"
#include "tests/where.h"

namespace sherd::testing {
namespace {

class SaveSignals : public ProcessesTest {};

TEST_F(SaveSignals, ToLaunchOrToOneProcessSaveOnceAndTheRunContinues) {
  std::vector<std::string> words = launch_words(folder_, "run",
                                                {.stage = 3,
                                                 .world = 1,
                                                 .precision = "",
                                                 .optimizer = "adamw",
                                                 .accumulation = "gradient_accumulation_steps: 1",
                                                 .interval = 0},
                                                {2, 1});
  for (const char* set : {"checkpoint.interval=1000000", "training.max_steps=1000000",
                          "metrics.log_interval=1", "checkpoint.keep_last=100"}) {
    words.insert(words.end(), {"--set", set});
  }
  int num_saves = 0;
  bool begun = false;
  const auto outcome =
      test::run_program(SHERD_PROGRAM, words, [&](pid_t launcher, const std::string& line) {
        if (!begun && line.starts_with("step 2/")) {
          begun = true;
          ::kill(launcher, SIGUSR2);
        }
        if (!line.starts_with("SIGUSR2: saving after step ")) return;
        ++num_saves;
        if (num_saves == 1) ::kill(process_of_world(1, folder_.file("run.yaml")), SIGUSR2);
        if (num_saves == 2) ::kill(launcher, SIGTERM);
      });
  EXPECT_EQ(outcome.exit_code, 75) << outcome.err << outcome.out;
  EXPECT_EQ(num_saves, 2);
  std::istringstream lines(folder_.read("run/metrics.jsonl"));
  std::vector<std::int64_t> saved;
  for (std::string line; std::getline(lines, line);) {
    const auto parsed = nlohmann::json::parse(line);
    if (parsed.contains("saved")) saved.push_back(parsed.at("saved"));
  }
  EXPECT_EQ(saved.size(), 3u) << "two on demand, and that of the end";
}

}  // namespace
}  // namespace sherd::testing
