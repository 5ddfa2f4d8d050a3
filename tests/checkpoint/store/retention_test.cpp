// Which checkpoints go, and that what stays is always whole.
#include "checkpoint/store/retention.h"

#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <set>

#include "checkpoint/store/step_directory.h"
#include "tests/checkpoint/support/hooked_disk.h"
#include "tests/checkpoint/support/save_world.h"
#include "tests/support/values/temp_folder.h"

namespace sherd::checkpoint {
namespace {

using Names = std::vector<std::string>;
using Steps = std::vector<std::int64_t>;
using test::SaveWorld;

std::vector<GoodCheckpoint> at(const Steps& steps) {
  std::vector<GoodCheckpoint> all;
  for (const std::int64_t step : steps) all.push_back({step, std::nullopt});
  return all;
}

TEST(Retention, TheNewestStay) {
  EXPECT_EQ(steps_to_remove({.keep_last = 2}, at({10, 40, 20, 30})), (Steps{10, 20}));
  EXPECT_EQ(steps_to_remove({.keep_last = 1}, at({10, 40, 20, 30})), (Steps{10, 20, 30}));
  EXPECT_EQ(steps_to_remove({.keep_last = 9}, at({10, 40})), Steps{});
  EXPECT_EQ(steps_to_remove({.keep_last = 2}, {}), Steps{});
}

TEST(Retention, MultiplesOfKeepEveryStay) {
  EXPECT_EQ(steps_to_remove({.keep_last = 1, .keep_every = 20}, at({10, 20, 30, 40, 50})),
            (Steps{10, 30}));
}

TEST(Retention, TheBestStayAndANaNIsNeverBest) {
  const std::vector<GoodCheckpoint> all = {
      {10, 3.0}, {20, 1.5}, {30, std::nan("")}, {40, 1.0}, {50, std::nullopt}, {60, 2.0}, {70, 9}};
  EXPECT_EQ(steps_to_remove({.keep_last = 1, .keep_best = 2}, all), (Steps{10, 30, 50, 60}));
}

TEST(Retention, OfEquallyGoodOnesTheNewerStays) {
  EXPECT_EQ(steps_to_remove({.keep_last = 1, .keep_best = 1}, {{10, 1.0}, {20, 1.0}, {30, 2.0}}),
            (Steps{10}));
}

TEST(Retention, ValuesOfDifferentThingsAreNotCompared) {
  const std::vector<GoodCheckpoint> all = {
      {10, 3.0, "a"}, {20, 1.0, "b"}, {30, 2.0, "a"}, {40, 4.0, "b"}, {50, 9.0, "b"}};
  EXPECT_EQ(steps_to_remove({.keep_last = 1, .keep_best = 1}, all), (Steps{10, 40}));
  EXPECT_EQ(steps_to_remove({.keep_last = 1, .keep_best = 2}, all), Steps{});
}

TEST(Retention, OneStaysThatIsFarEnoughBehindTheNewest) {
  EXPECT_EQ(steps_to_remove({.keep_last = 2, .keep_behind = 3}, at({8, 9, 10, 11, 12, 13})),
            (Steps{8, 9}));
  for (const auto& [interval, behind] : {std::pair(1, 3), {1, 100}, {50, 103}, {7, 5}, {10, 10}}) {
    Steps there;
    for (std::int64_t step = interval; step <= 40 * interval + 4 * behind; step += interval) {
      there.push_back(step);
      const RetentionPolicy policy{.keep_last = 2, .keep_behind = behind};
      for (const std::int64_t gone : steps_to_remove(policy, at(there))) std::erase(there, gone);
      EXPECT_LE(there.size(), 4u) << step;
      if (step < behind + interval) continue;
      EXPECT_LE(there.front(), step - behind) << interval << " " << behind;
      EXPECT_GE(there.front(), step - 2 * (behind + interval)) << interval << " " << behind;
    }
  }
}

TEST(Retention, RemovesInTheBackgroundWhatThePolicyLetsGo) {
  const test::TempFolder folder;
  SaveWorld save(folder.path(), 2, test::small_tensors());
  Retention retention(posix_disk(), folder.path(), {.keep_last = 2, .keep_best = 1},
                      [](const Manifest& manifest) {
                        // Step 2 is the best.
                        return GoodCheckpoint{.value = manifest.step == 2 ? 0.5 : 1.0};
                      });
  Steps removed;
  for (std::int64_t step = 1; step <= 6; ++step) {
    ASSERT_TRUE(save.save(step).committed);
    retention.apply();
    const RetentionReport report = retention.finish();
    EXPECT_EQ(report.problems, Names{});
    removed.insert(removed.end(), report.removed.begin(), report.removed.end());
  }
  EXPECT_EQ(removed, (Steps{1, 3, 4}));
  EXPECT_EQ(save.names(),
            (Names{"latest", "step-0000000002", "step-0000000005", "step-0000000006"}));
  for (const std::int64_t step : {2, 5, 6}) EXPECT_EQ(save.complaint_about_step(step), "");
}

// The two newest have a bad byte each: in the data, and cut short. The two good ones stay, though
// keep_last is 1 and both are older.
TEST(Retention, DamagedCheckpointsDontCountAndAreNamed) {
  const test::TempFolder folder;
  SaveWorld save(folder.path(), 1, test::small_tensors());
  for (std::int64_t step = 1; step <= 4; ++step) ASSERT_TRUE(save.save(step).committed);
  const std::string shard = "step-0000000003/" + shard_name(0, 1);
  std::string bytes = folder.read(shard);
  bytes[bytes.size() - 3] ^= 1;
  folder.write(shard, bytes);
  std::filesystem::resize_file(folder.file("step-0000000004/manifest.json"), 100);

  Retention retention(posix_disk(), folder.path(), {.keep_last = 1});
  retention.apply();
  const RetentionReport report = retention.finish();
  EXPECT_EQ(report.removed, Steps{1});
  ASSERT_EQ(report.problems.size(), 2u);
  EXPECT_NE((report.problems[0] + report.problems[1]).find(shard), std::string::npos);
  EXPECT_NE((report.problems[0] + report.problems[1]).find("step-0000000004/manifest.json"),
            std::string::npos);
  EXPECT_EQ(save.names(),
            (Names{"latest", "step-0000000002", "step-0000000003", "step-0000000004"}));
}

// After every number of calls the removal stops for good: what has a step- name is whole, and a
// start removes the rest.
TEST(Retention, ARemovalThatIsCutOffLeavesWholeCheckpointsOnly) {
  bool ran_through = false;
  for (int n = 0; !ran_through; ++n) {
    const test::TempFolder folder;
    SaveWorld save(folder.path(), 1, test::small_tensors());
    for (std::int64_t step = 1; step <= 2; ++step) ASSERT_TRUE(save.save(step).committed);
    int calls = 0;
    test::HookedDisk disk([&](const test::DiskCall&) -> std::optional<std::int64_t> {
      return calls++ < n ? std::nullopt : std::optional<std::int64_t>(-EIO);
    });
    try {
      remove_checkpoint(disk, folder.path(), 1, "test");
      ran_through = true;
    } catch (const DiskError&) {
    }
    if (exists(posix_disk(), folder.file("step-0000000001"))) {
      EXPECT_EQ(save.complaint_about_step(1), "") << n;
    }
    EXPECT_EQ(save.complaint_about_step(2), "") << n;
    EXPECT_EQ(remove_leftovers(posix_disk(), folder.path()).failures, Names{});
    for (const std::string& name : save.names()) EXPECT_NE(name[0], '.') << name;
  }
}

TEST(StepDirectory, LeftoversGoAndEverythingElseStays) {
  const test::TempFolder folder;
  folder.write(".tmp-step-0000000003-0123/shard-00000-of-00001.h5", "half");
  folder.write(".gone-step-0000000001-0123/manifest.json", "{}");
  folder.write(".latest-0123", "step");
  folder.write("step-0000000002/manifest.json", "{}");
  folder.write("latest", "step-0000000002\n");
  folder.write("notes.txt", "mine");
  std::filesystem::create_symlink(folder.file("step-0000000002"), folder.file(".tmp-link"));
  EXPECT_EQ(remove_leftovers(posix_disk(), folder.path()).removed,
            (Names{".gone-step-0000000001-0123", ".latest-0123", ".tmp-link",
                   ".tmp-step-0000000003-0123"}));
  EXPECT_EQ(list_directory(posix_disk(), folder.path()),
            (Names{"latest", "notes.txt", "step-0000000002"}));
  EXPECT_EQ(folder.read("step-0000000002/manifest.json"), "{}");
}

TEST(StepDirectory, ADamagedStepIsSetAsideAndItsStepIsFreeAgain) {
  const test::TempFolder folder;
  SaveWorld save(folder.path(), 1, test::small_tensors());
  ASSERT_TRUE(save.save(8).committed);
  const std::string aside = set_aside(posix_disk(), folder.path(), 8, "a");
  EXPECT_TRUE(save.save(8).committed);
  EXPECT_EQ(save.names(), (Names{"damaged-step-0000000008-a", "latest", "step-0000000008"}));
  EXPECT_EQ(remove_leftovers(posix_disk(), folder.path()).removed, Names{});
  EXPECT_EQ(aside, folder.file("damaged-step-0000000008-a"));
}

// Its manifest is right, its shards are as large as it says: reading them could take days.
TEST(Retention, WhatIsNotOfThisRunIsNeitherReadNorCountedNorRemoved) {
  const test::TempFolder folder;
  SaveWorld save(folder.path(), 1, test::small_tensors());
  for (const std::int64_t step : {1, 2, 3}) ASSERT_TRUE(save.save(step).committed);
  std::int64_t examined = 0;
  std::set<std::int64_t> read;
  test::HookedDisk disk([&](const test::DiskCall& call) -> std::optional<std::int64_t> {
    if (call.name == "pread" && call.path.ends_with(".h5")) read.insert(examined);
    return {};
  });
  const auto belongs = [&](const Checkpoint& checkpoint) {
    examined = checkpoint.manifest().step;
    if (examined == 3) throw DataError("step 3 is of another model");
  };
  Retention retention(disk, folder.path(), {.keep_last = 1}, {}, VerifyDepth::kDeep,
                      {.belongs = belongs});
  retention.apply();
  const RetentionReport report = retention.finish();
  EXPECT_EQ(report.removed, Steps{1});
  EXPECT_EQ(report.problems, Names{"step 3 is of another model"});
  EXPECT_EQ(read, (std::set<std::int64_t>{1, 2}));
  EXPECT_EQ(save.complaint_about_step(3), "");
}

TEST(Retention, RemovesNothingOnceTheFolderIsAnotherRuns) {
  const test::TempFolder parent;
  std::filesystem::create_directory(parent.file("run"));
  const OutputLock lock(posix_disk(), parent.file("run"));
  const std::string directory = prepare_checkpoints(posix_disk(), parent.file("run"));
  SaveWorld save(directory, 1, test::small_tensors());
  for (const std::int64_t step : {1, 2}) ASSERT_TRUE(save.save(step).committed);
  std::filesystem::remove(parent.file("run/.lock"));
  Retention retention(posix_disk(), directory, {.keep_last = 1}, {}, VerifyDepth::kDeep,
                      {.lock = &lock});
  retention.apply();
  const RetentionReport report = retention.finish();
  EXPECT_EQ(report.removed, Steps{});
  ASSERT_EQ(report.problems.size(), 1u);
  EXPECT_NE(report.problems[0].find("no longer exists"), std::string::npos);
  EXPECT_EQ(save.complaint_about_step(1), "");
}

TEST(Retention, ACheckpointThatSomebodyReadsStaysUntilTheNextCommitAfterThat) {
  const test::TempFolder folder;
  SaveWorld save(folder.path(), 1, test::small_tensors());
  Retention retention(posix_disk(), folder.path(), {.keep_last = 1});
  const auto commit = [&](std::int64_t step) {
    EXPECT_TRUE(save.save(step).committed);
    retention.apply();
    const RetentionReport report = retention.finish();
    EXPECT_EQ(report.problems, Names{});
    return report.removed;
  };
  EXPECT_EQ(commit(1), Steps{});
  std::optional<Checkpoint> read(std::in_place, posix_disk(), folder.file("step-0000000001"));
  ASSERT_TRUE(read->hold());
  EXPECT_EQ(commit(2), Steps{});
  EXPECT_EQ(commit(3), Steps{2});
  EXPECT_EQ(save.complaint_about_step(1), "");
  read.reset();
  EXPECT_EQ(commit(4), (Steps{1, 3}));
}

TEST(Retention, WhatIsBeingRemovedOrHasBeenCannotBeHeld) {
  const test::TempFolder folder;
  SaveWorld save(folder.path(), 1, test::small_tensors());
  ASSERT_TRUE(save.save(1).committed);
  const Checkpoint reader(posix_disk(), folder.file("step-0000000001"));
  {
    const Checkpoint remover(posix_disk(), folder.file("step-0000000001"));
    EXPECT_TRUE(remover.claim());
    EXPECT_FALSE(reader.hold());
    remove_checkpoint(posix_disk(), folder.path(), 1, "test");
  }
  EXPECT_FALSE(reader.hold());
  ASSERT_TRUE(save.save(1).committed);  // another one has its name
  EXPECT_FALSE(reader.hold());
}

// A file system without locks: nothing is held, and nothing is kept from going.
TEST(Retention, WithoutLocksEverythingIsAsIfNobodyRead) {
  const test::TempFolder folder;
  SaveWorld save(folder.path(), 1, test::small_tensors());
  for (std::int64_t step = 1; step <= 2; ++step) ASSERT_TRUE(save.save(step).committed);
  test::HookedDisk disk([&](const test::DiskCall& call) -> std::optional<std::int64_t> {
    return call.name.starts_with("flock") ? std::optional<std::int64_t>(-ENOLCK) : std::nullopt;
  });
  const Checkpoint reader(disk, folder.file("step-0000000001"));
  EXPECT_TRUE(reader.hold());
  Retention retention(disk, folder.path(), {.keep_last = 1});
  retention.apply();
  EXPECT_EQ(retention.finish().removed, Steps{1});
  EXPECT_FALSE(reader.hold());
}

}  // namespace
}  // namespace sherd::checkpoint
