// A save needs the ring it is given and next to nothing else, however large the state is; and with
// a ring that is smaller than the slice, the update waits for the disk.
#include <gtest/gtest.h>

#include <atomic>
#include <condition_variable>
#include <fstream>
#include <mutex>
#include <string>
#include <vector>

#include "checkpoint/store/step_directory.h"
#include "checkpoint/writer.h"
#include "tests/checkpoint/support/allocation_meter.h"
#include "tests/checkpoint/support/hooked_disk.h"
#include "tests/checkpoint/support/save_world.h"
#include "tests/support/values/temp_folder.h"

namespace sherd::checkpoint {
namespace {

constexpr std::int64_t kMiB = 1 << 20;
constexpr int kWorld = 8;

/// Sixteen matrices with two moments each, `bytes` together.
std::vector<sharding::StateTensor> tensors_of(std::int64_t bytes) {
  std::vector<sharding::StateTensor> tensors;
  for (const char* kind : {"param", "exp_avg", "exp_avg_sq"}) {
    for (int i = 0; i < 16; ++i) {
      tensors.push_back({"block." + std::to_string(i) + ".weight",
                         kind,
                         {bytes / 4 / 3 / 16 / 64, 64},
                         DType::kF32});
    }
  }
  return tensors;
}

// Half of one block: not even one rank holds a block anywhere but in its ring.
TEST(SaveMemory, EightRanksAllocateNothingThatGrowsWithTheState) {
  const test::TempFolder folder;
  test::SaveWorld save(folder.path(), kWorld, tensors_of(64 * kMiB), posix_disk(), kBlockBytes, 3);
  const test::AllocationMeter meter;
  const test::SaveOutcome outcome = save.save_together(1);
  const std::int64_t most_held = meter.most_held();
  ASSERT_TRUE(outcome.committed) << outcome.what();
  EXPECT_NEAR(static_cast<double>(outcome.times.bytes), 8 * kMiB, 4096);
  EXPECT_GT(most_held, 0);
  EXPECT_LT(most_held, kBlockBytes / 2);
  EXPECT_EQ(save.complaint_about_step(1), "");
  RecordProperty("most_held_bytes", static_cast<int>(most_held));
}

/// A line of /proc/self/status, in bytes.
std::int64_t memory_line(const std::string& name) {
  std::ifstream in("/proc/self/status");
  for (std::string line; std::getline(in, line);) {
    if (line.starts_with(name + ":")) return std::stoll(line.substr(name.size() + 1)) * 1024;
  }
  return 0;
}

// What the process has in memory, stacks and libraries' own heaps included.
TEST(SaveMemorySlow, EightRanksWritingAGibibyteNeedTheirRingsOnly) {
  const test::TempFolder folder;
  const std::int64_t ring = 16 * kMiB;
  test::SaveWorld save(folder.path(), kWorld, tensors_of(1024 * kMiB), posix_disk(), ring, 3);
  {
    // The rings are the plan's, so they are there before.
    const std::int64_t before = memory_line("VmRSS");
    save.touch_rings();
    EXPECT_GE(memory_line("VmRSS") - before, kWorld * ring * 9 / 10);
  }
  std::ofstream("/proc/self/clear_refs") << 5;  // resets the high-water mark
  const std::int64_t before = memory_line("VmRSS");
  ASSERT_GT(before, 1024 * kMiB);
  const test::SaveOutcome outcome = save.save_together(1);
  const std::int64_t growth = memory_line("VmHWM") - before;
  ASSERT_TRUE(outcome.committed) << outcome.what();
  // 48 threads' stacks and heaps; 1/64 of the state.
  EXPECT_LT(growth, 16 * kMiB);
  RecordProperty("growth_bytes", static_cast<int>(growth));
  EXPECT_EQ(save.complaint_about_step(1), "");
}

const std::vector<sharding::StateTensor> kTwentyMiB = {{"a", "param", {5 << 20}, DType::kF32}};

TEST(SaveMemory, WithASmallRingTheUpdateWaitsUntilTheDiskHasTakenTheRest) {
  for (const std::int64_t ring : {kBlockBytes, 9 * kMiB, 16 * kMiB}) {
    const test::TempFolder folder;
    std::atomic<std::int64_t> taken{0};
    test::HookedDisk disk({}, [&](const test::DiskCall& call, std::int64_t result) {
      if (call.writes()) taken += result;
    });
    test::SaveWorld save(folder.path(), 1, kTwentyMiB, disk, ring, 3);
    save.known(0).fill(1);
    save.writer(0).begin(1, make_save_uuid(), save.known(0).state());
    save.writer(0).wait_copied();
    const std::int64_t taken_by_then = taken;
    save.known(0).fill(2);  // the update; what isn't on disk by now must be in the ring
    EXPECT_GE(taken_by_then, 20 * kMiB - ring);
    ASSERT_EQ(save.writer(0).wait().phase, SavePhase::kPrepared);
    save.writer(0).commit(std::make_shared<nlohmann::json>(nlohmann::json::object()));
    ASSERT_EQ(save.writer(0).wait().phase, SavePhase::kCommitted);
    save.writer(0).finish();
    EXPECT_EQ(save.complaint_about_step(1), "");
  }
}

// The disk takes nothing at all until the update is done: if the wait depended on it, the test
// would never end.
TEST(SaveMemory, WithARingForTheWholeSliceTheUpdateDoesntWaitForTheDisk) {
  const test::TempFolder folder;
  std::mutex mutex;
  std::condition_variable changed;
  bool updated = false;
  test::HookedDisk disk([&](const test::DiskCall& call) -> std::optional<std::int64_t> {
    std::unique_lock lock(mutex);
    if (call.writes()) changed.wait(lock, [&] { return updated; });
    return {};
  });
  test::SaveWorld save(folder.path(), 1, kTwentyMiB, disk, staging_bytes({20 * kMiB}), 3);
  save.known(0).fill(1);
  save.writer(0).begin(1, make_save_uuid(), save.known(0).state());
  save.writer(0).wait_copied();
  save.known(0).fill(2);
  {
    const std::lock_guard lock(mutex);
    updated = true;
  }
  changed.notify_all();
  ASSERT_EQ(save.writer(0).wait().phase, SavePhase::kPrepared);
  save.writer(0).commit(std::make_shared<nlohmann::json>(nlohmann::json::object()));
  ASSERT_EQ(save.writer(0).wait().phase, SavePhase::kCommitted);
  save.writer(0).finish();
  EXPECT_EQ(save.complaint_about_step(1), "");
}

}  // namespace
}  // namespace sherd::checkpoint
