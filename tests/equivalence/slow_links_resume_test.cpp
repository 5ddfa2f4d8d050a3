// Resumes of runs whose ranks send blocks.

#include <gtest/gtest.h>

#include "checkpoint/store/committed.h"
#include "tests/support/runs/small_run.h"

namespace sherd::testing {
namespace {

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
  expect_goes_on_at_every_stage(folder, run, {3, 1});
}

}  // namespace
}  // namespace sherd::testing
