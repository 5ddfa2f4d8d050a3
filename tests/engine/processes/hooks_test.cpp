// Hooks of a run of several processes: only process 0 runs them, and as a program of its own.
#include "tests/engine/processes/mpi_runs.h"

namespace sherd::testing {
namespace {

class ProcessHooks : public ProcessesTest {};

TEST_F(ProcessHooks, RunOnceAndNotAsAProcessOfTheWorld) {
  const std::string note =
      "echo $SHERD_EVENT $(env | grep -c -e ^OMPI_ -e ^PMIX_) >> " + folder_.file("events");
  const auto outcome = train_in_processes(
      folder_, "run",
      {.stage = 3,
       .world = 1,
       .precision = "",
       .optimizer = "adamw",
       .accumulation = "gradient_accumulation_steps: 1",
       .interval = 0},
      {2, 1}, {"--set", "hooks.on_start=" + note, "--set", "hooks.on_end=" + note});
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_EQ(folder_.read("events"), "start 0\nend 0\n");
}

}  // namespace
}  // namespace sherd::testing
