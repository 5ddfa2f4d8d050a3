// Saves that fail: how many in a row a run tolerates, and that a successful one resets the count.
#include <gtest/gtest.h>

#include <set>

#include "checkpoint/store/committed.h"
#include "tests/checkpoint/support/hooked_disk.h"
#include "tests/support/runs/small_run.h"
#include "tests/support/values/error_text.h"

namespace sherd::testing {
namespace {

using checkpoint::posix_disk;

/// No room for the saves of these steps.
test::HookedDisk::Before refusing(const std::set<std::int64_t>& steps) {
  return [steps](const test::DiskCall& call) -> std::optional<std::int64_t> {
    const std::size_t name = call.path.find(".tmp-step-");
    if (call.name != "mkdir" || name == std::string::npos) return {};
    if (!steps.contains(std::stoll(call.path.substr(name + 10, 10)))) return {};
    return -ENOSPC;
  };
}

struct Outcome {
  std::string error;  ///< "" if the run ended well
  int exit_code = 0;
  std::vector<std::int64_t> steps;  ///< of the checkpoints there are
};

/// A run of 8 steps that saves after each and can't save these.
Outcome run_without(const std::set<std::int64_t>& steps, const std::string& more, int world = 1) {
  const test::TempFolder folder;
  write_data(folder);
  test::HookedDisk disk(refusing(steps));
  TrainingRun run{.stage = 1,
                  .world = world,
                  .precision = "mixed_precision: {param_dtype: f32}",
                  .optimizer = "adamw",
                  .accumulation = "gradient_accumulation_steps: 1",
                  .more = "",
                  .disk = &disk};
  run.interval = 1;
  run.async = false;
  run.checkpoint = "keep_last: 9" + more;
  Outcome outcome;
  try {
    train_in(folder, "run", run);
  } catch (const Error& error) {
    outcome.error = error.what();
    outcome.exit_code = error.exit_code();
  }
  outcome.steps = checkpoint::committed_steps(posix_disk(), folder.file("run/checkpoints"));
  EXPECT_EQ(numbers_of(folder, "run").empty(), false);
  return outcome;
}

using Steps = std::vector<std::int64_t>;

TEST(FailedSaves, TheThirdInARowEndsTheRunAndOneThatSucceedsStartsTheCountAnew) {
  for (const int world : {1, 2}) {
    const Outcome spread = run_without({1, 2, 4, 5, 7}, "", world);
    EXPECT_EQ(spread.error, "");
    EXPECT_EQ(spread.steps, (Steps{8, 6, 3}));

    const Outcome row = run_without({3, 4, 5}, "", world);
    EXPECT_EQ(row.exit_code, 3);
    EXPECT_NE(row.error.find("the checkpoint of step 5 wasn't saved"), std::string::npos);
    EXPECT_NE(row.error.find("ENOSPC"), std::string::npos) << row.error;
    EXPECT_NE(row.error.find("; 3 saves in a row have failed"), std::string::npos) << row.error;
    EXPECT_NE(row.error.find("the newest good checkpoint is "), std::string::npos) << row.error;
    EXPECT_NE(row.error.find("step-0000000002"), std::string::npos) << row.error;
    EXPECT_EQ(row.steps, (Steps{2, 1}));
  }
}

TEST(FailedSaves, AsManyAsTheRecipeAllowsAndWithZeroAnyNumber) {
  EXPECT_EQ(run_without({3, 4}, ", max_failed_saves: 2").steps, (Steps{2, 1}));
  EXPECT_EQ(run_without({3, 4}, ", max_failed_saves: 1").steps, (Steps{2, 1}));
  const Outcome any = run_without({1, 2, 3, 4, 5, 6, 7}, ", max_failed_saves: 0");
  EXPECT_EQ(any.error, "");
  EXPECT_EQ(any.steps, Steps{8});
}

TEST(FailedSaves, TheLastOneHasToSucceedWhateverIsAllowed) {
  const Outcome last = run_without({8}, ", max_failed_saves: 0");
  EXPECT_EQ(last.exit_code, 3);
  EXPECT_EQ(last.error.find("in a row"), std::string::npos) << last.error;
  EXPECT_NE(last.error.find("step-0000000007"), std::string::npos) << last.error;
}

TEST(FailedSaves, TheEndNamesNoCheckpointThatTheRunHasRefused) {
  const test::TempFolder folder;
  write_data(folder);
  test::HookedDisk disk(refusing({8}));
  TrainingRun run{.stage = 1,
                  .world = 1,
                  .precision = "mixed_precision: {param_dtype: f32}",
                  .optimizer = "adamw",
                  .accumulation = "gradient_accumulation_steps: 1"};
  run.interval = 1;
  train_in(folder, "run", run);
  const std::string shard = "run/checkpoints/step-0000000008/shard-00000-of-00001.h5";
  std::string bytes = folder.read(shard);
  for (std::size_t i = bytes.size() / 4; i < bytes.size(); i += 16) bytes[i] ^= 1;
  folder.write(shard, bytes);
  run.disk = &disk;
  const std::string error = test::error_text<Error>([&] { train_in(folder, "run", run); });
  EXPECT_NE(error.find("the newest good checkpoint is "), std::string::npos) << error;
  EXPECT_NE(error.find("step-0000000007"), std::string::npos) << error;
}

}  // namespace
}  // namespace sherd::testing
