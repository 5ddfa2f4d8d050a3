// A run that begins on a disk without room: it says so, and leaves the disk as it was.
#include <fcntl.h>
#include <gtest/gtest.h>

#include <filesystem>

#include "tests/checkpoint/support/hooked_disk.h"
#include "tests/support/runs/small_run.h"

namespace sherd::testing {
namespace {

namespace fs = std::filesystem;

bool takes_room(const test::DiskCall& call) {
  return call.name == "mkdir" || call.writes() ||
         (call.name == "open" && (call.flags & O_CREAT) != 0);
}

/// From the n-th such call on there is no room; data that is in files needs more than names do.
std::string error_with_room_for(const test::TempFolder& folder, int calls, bool only_for_names) {
  test::HookedDisk disk([calls, only_for_names, done = 0](
                            const test::DiskCall& call) mutable -> std::optional<std::int64_t> {
    if (!takes_room(call) || (only_for_names && !call.writes()) || ++done <= calls) return {};
    return -ENOSPC;
  });
  const TrainingRun run{.world = 2,
                        .precision = "mixed_precision: {param_dtype: f32}",
                        .optimizer = "adamw",
                        .accumulation = "gradient_accumulation_steps: 1",
                        .disk = &disk};
  try {
    train_in(folder, "runs/first", run);
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

TEST(FullDisk, AFirstStartLeavesNothingAndSaysThatTheDiskIsFull) {
  for (const bool only_for_names : {false, true}) {
    int calls = 0;
    for (;; ++calls) {
      const test::TempFolder folder(test::memory_folder());
      write_data(folder);
      const std::string error = error_with_room_for(folder, calls, only_for_names);
      ASSERT_NE(error, "");
      if (fs::exists(folder.file("runs/first/metrics.jsonl"))) {
        EXPECT_NE(folder.read("runs/first/recipe.yaml"), "") << "it has begun";
        break;
      }
      EXPECT_FALSE(fs::exists(folder.file("runs"))) << calls << ": " << error;
      EXPECT_NE(error.find("No space left on device"), std::string::npos) << error;
      EXPECT_NE(error.find("ake room"), std::string::npos) << error;
      EXPECT_EQ(error.find("may write"), std::string::npos) << error;
      EXPECT_EQ(error.find('\n'), std::string::npos) << error;
      ASSERT_LT(calls, 100);
    }
    EXPECT_GE(calls, only_for_names ? 2 : 6) << "lock, recipe.yaml; and their folders";
  }
}

}  // namespace
}  // namespace sherd::testing
