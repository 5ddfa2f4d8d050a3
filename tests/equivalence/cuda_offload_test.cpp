// State of a GPU in its host's memory, in whole runs from recipes: their metrics and checkpoints are those of state on
// the GPU.

#include <gtest/gtest.h>

#include <filesystem>

#include "checkpoint/format/manifest.h"
#include "tests/support/runs/small_run.h"

namespace sherd::testing {
namespace {

struct Form {
  int stage, world;
  const char* precision;
  const char* optimizer;
  bool async;
};

TEST(CudaOffload, HostUpdatesSaveWhatTheGpuWouldAndGoOnFromItsCheckpoints) {
  const CudaSystem system = cuda_system();
  if (!system.problem.empty()) GTEST_SKIP() << "no GPU: " << system.problem;
  const test::TempFolder folder;
  write_data(folder);
  const std::string last = "checkpoints/" + checkpoint::step_directory_name(kSteps);
  int number = 0;
  for (const Form& form :
       {Form{2, 2, "mixed_precision: {param_dtype: bf16}", "adamw, eight_bit_states: true", true},
        Form{3, 1, "", "lion", false}}) {
    const std::string device = fmt::format("device{}", number),
                      host = fmt::format("host{}", number);
    ++number;
    TrainingRun run{.stage = form.stage,
                    .world = form.world,
                    .precision = form.precision,
                    .optimizer = form.optimizer,
                    .accumulation = "micro_batch_size: 2",
                    .async = form.async,
                    .model = ", head_width: 8",
                    .dropout = 0.0};
    run.machine = engine::cuda_machine(run.world, {.share_device = true});
    TrainingRun by_cores = run;
    by_cores.host_updates = true;
    train_in(folder, device, run);
    train_in(folder, host, by_cores);
    EXPECT_EQ(numbers_of(folder, host), numbers_of(folder, device)) << number;
    const std::vector<std::string> state = final_state(folder, device);
    EXPECT_EQ(final_state(folder, host), state) << number;
    // The second half again, from the other's checkpoint.
    const std::string& again = form.stage == 3 ? device : host;
    std::filesystem::remove_all(folder.file(again + "/" + last));
    train_in(folder, again, again == host ? run : by_cores);
    EXPECT_EQ(final_state(folder, again), state) << number << ", " << again << " resumed";
  }
}

}  // namespace
}  // namespace sherd::testing
