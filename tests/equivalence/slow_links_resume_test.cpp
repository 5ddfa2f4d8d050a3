// Resumes of runs whose ranks send blocks.

#include <gtest/gtest.h>

#include <filesystem>

#include "checkpoint/store/committed.h"
#include "tests/support/runs/small_run.h"

namespace sherd::testing {
namespace {

namespace fs = std::filesystem;

TEST(SlowLinks, AResumeAtAnotherStageAndWorldIsTheRunThatNeverStopped) {
  const test::TempFolder folder;
  write_data(folder);
  TrainingRun run{.stage = 3,
                  .world = 3,
                  .precision =
                      "mixed_precision: {param_dtype: bf16, gather_dtype: int8_block64, "
                      "reduce_dtype: int4_block64}",
                  .optimizer = "adamw",
                  .accumulation = "gradient_accumulation_steps: 1"};
  train_in(folder, "whole", run);
  run.accumulation = "micro_batch_size: 4";  // of four rows, as on three ranks
  for (const int world : {3, 1}) {
    for (int stage = 0; stage <= 3; ++stage) {
      run.world = world;
      run.stage = stage;
      run.zero = "grad_sync: every_micro_step";
      fs::remove_all(folder.file("again"));
      fs::copy(folder.file("whole"), folder.file("again"), fs::copy_options::recursive);
      fs::remove_all(folder.file("again/checkpoints/" + checkpoint::step_directory_name(kSteps)));
      train_in(folder, "again", run);
      EXPECT_EQ(numbers_of(folder, "whole"), numbers_of(folder, "again"))
          << "stage " << stage << " on " << world;
      EXPECT_EQ(final_state(folder, "whole"), final_state(folder, "again"))
          << "stage " << stage << " on " << world;
    }
  }
}

}  // namespace
}  // namespace sherd::testing
