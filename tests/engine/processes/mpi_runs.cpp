#include "tests/engine/processes/mpi_runs.h"

#include <signal.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <sstream>

#include "sharding/processes/mpi.h"
#include "tests/where.h"

namespace sherd::testing {
namespace {

std::string content(const std::string& path) {
  std::ifstream file(path);
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

// Calls with each process that has `word` in its command line.
template <class Call>
void for_processes(const std::string& word, const Call& call) {
  std::error_code gone;
  for (const auto& entry : std::filesystem::directory_iterator("/proc", gone)) {
    const pid_t process = std::atoi(entry.path().filename().c_str());
    if (process <= 0 || process == ::getpid()) continue;
    if (command_line(process).find(word) != std::string::npos) call(process);
  }
}

}  // namespace

void ProcessesTest::SetUp() {
  if (sharding::mpi_library().empty()) GTEST_SKIP() << "this program was built without MPI";
  write_data(folder_);
}

TrainingRun two_replicas(const std::string& optimizer, const std::string& more, int stage) {
  return {.stage = stage,
          .world = 1,
          .precision = "",
          .optimizer = optimizer,
          .accumulation = "micro_batch_size: 1",
          .interval = 1,
          .checkpoint = "keep_last: 100",
          .more = more,
          .mesh = "data_parallel_replicate_degree: 2"};
}

std::vector<std::string> launch_words(const test::TempFolder& folder, const std::string& output,
                                      TrainingRun run, const ProcessWorld& world) {
  run.world = world.ranks();
  folder.write(output + ".yaml", recipe_text(folder, output, run));
  return {"launch", "-n",    std::to_string(world.num_processes),
          "--",     "train", folder.file(output + ".yaml")};
}

test::ProgramOutcome train_in_processes(const test::TempFolder& folder, const std::string& output,
                                        TrainingRun run, const ProcessWorld& world,
                                        const std::vector<std::string>& more) {
  std::vector<std::string> words = launch_words(folder, output, run, world);
  words.insert(words.end(), more.begin(), more.end());
  return test::run_program(SHERD_PROGRAM, words);
}

std::string command_line(pid_t process) {
  std::string words = content("/proc/" + std::to_string(process) + "/cmdline");
  for (char& c : words) {
    if (c == '\0') c = ' ';
  }
  return words;
}

void train_until_killed(const test::TempFolder& folder, const std::string& output,
                        const TrainingRun& run, const ProcessWorld& world,
                        const std::vector<std::string>& more) {
  std::vector<std::string> words = launch_words(folder, output, run, world);
  words.insert(words.end(), more.begin(), more.end());
  words.insert(words.end(), {"--set", "metrics.log_interval=1", "--set", "run.peer_timeout=5"});
  bool killed = false;
  const auto outcome = test::run_program(SHERD_PROGRAM, words, [&](pid_t, const std::string& line) {
    if (killed || !line.starts_with("step 3/")) return;
    killed = true;
    ::kill(process_of_world(1, folder.file(output + ".yaml")), SIGKILL);
  });
  EXPECT_TRUE(killed) << outcome.out << outcome.err;
  EXPECT_NE(outcome.exit_code, 0);
}

pid_t process_of_world(int number, const std::string& word) {
  const std::string mark = "OMPI_COMM_WORLD_RANK=" + std::to_string(number) + '\0';
  pid_t found = -1;
  for_processes(word, [&](pid_t process) {
    const std::string environment = content("/proc/" + std::to_string(process) + "/environ");
    if (environment.find(mark) != std::string::npos) found = process;
  });
  return found;
}

int count_processes(const std::string& word) {
  int count = 0;
  for_processes(word, [&](pid_t) { ++count; });
  return count;
}

}  // namespace sherd::testing
