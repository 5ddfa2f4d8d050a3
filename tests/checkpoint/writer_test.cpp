// A save as the engine drives it: what is on disk afterwards, and what isn't when it fails.
#include "checkpoint/writer.h"

#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <functional>
#include <limits>
#include <map>
#include <string>
#include <vector>

#include "checkpoint/store/committed.h"
#include "checkpoint/store/step_directory.h"
#include "tests/checkpoint/support/known_state.h"
#include "tests/checkpoint/support/save_world.h"
#include "tests/support/values/temp_folder.h"

namespace sherd::checkpoint {
namespace {

using test::SaveWorld;

constexpr std::int64_t kWrittenMiB = 1 << 20;

using Names = std::vector<std::string>;

TEST(Writer, WhatIsSavedIsOnDiskBitForBit) {
  for (const int world : {1, 2, 3, 8}) {
    const test::TempFolder folder;
    SaveWorld save(folder.path(), world, test::small_tensors());
    const test::SaveOutcome outcome = save.save(7);
    ASSERT_TRUE(outcome.committed) << world << " ranks: " << outcome.what();
    EXPECT_EQ(save.complaint_about_step(7), "") << world << " ranks";
    EXPECT_EQ(save.names(), (Names{"latest", "step-0000000007"}));
    EXPECT_EQ(folder.read("latest"), "step-0000000007\n");
  }
}

TEST(Writer, RanksWithoutAnyElementsHaveAShardToo) {
  const test::TempFolder folder;
  SaveWorld save(folder.path(), 4, {{"one", "param", {2}, DType::kF32}});
  ASSERT_TRUE(save.save(1).committed);
  EXPECT_EQ(save.complaint_about_step(1), "");
}

// 18 MiB of state per kind, so that blocks of 4 MiB wrap around rings of any size, whole or not.
TEST(Writer, ARingSmallerThanTheSliceChangesNothing) {
  const std::vector<sharding::StateTensor> tensors = {
      {"a", "param", {1 << 20, 3}, DType::kF32},
      {"b", "param", {1543, 1001}, DType::kF32},
      {"a", "exp_avg", {1 << 20, 3}, DType::kBF16},
  };
  for (const std::int64_t ring :
       {4 * kWrittenMiB, 4 * kWrittenMiB + 4096, 9 * kWrittenMiB + 8192, 64 * kWrittenMiB}) {
    const test::TempFolder folder;
    SaveWorld save(folder.path(), 2, tensors, posix_disk(), ring, 3);
    ASSERT_TRUE(save.save(1).committed) << ring;
    ASSERT_TRUE(save.save(2).committed) << ring;
    EXPECT_EQ(save.complaint_about_step(1), "") << ring;
    EXPECT_EQ(save.complaint_about_step(2), "") << ring;
  }
}

TEST(Writer, ARankSavesItsTimes) {
  const test::TempFolder folder;
  SaveWorld save(folder.path(), 1, test::small_tensors());
  const test::SaveOutcome outcome = save.save(1);
  // 37x8 + 16x8 + 5 elements as param (f32) and exp_avg (bf16), the first two again, one scalar
  EXPECT_EQ(outcome.times.bytes, 429 * 4 + 429 * 2 + 424 * 4 + 4);
  EXPECT_GT(outcome.times.copied.count(), 0);
  EXPECT_GE(outcome.times.committed, outcome.times.written);
  EXPECT_GT(outcome.times.mib_per_second(), 0);
}

TEST(Writer, AStepIsNeverReplaced) {
  const test::TempFolder folder;
  SaveWorld save(folder.path(), 2, test::small_tensors());
  ASSERT_TRUE(save.save(5).committed);
  const std::string before = folder.read("step-0000000005/manifest.json");
  const test::SaveOutcome again = save.save(5);
  EXPECT_FALSE(again.committed);
  ASSERT_TRUE(again.failure);
  EXPECT_NE(again.failure->message.find("exists already and is whole"), std::string::npos)
      << again.failure->message;
  EXPECT_EQ(folder.read("step-0000000005/manifest.json"), before);
  EXPECT_EQ(save.names(), (Names{"latest", "step-0000000005"}));
  EXPECT_TRUE(save.save(6).committed);
}

std::string damaged_name(const SaveWorld& save, std::int64_t step) {
  std::string found;
  for (const std::string& name : save.names()) {
    if (name.starts_with("damaged-" + step_directory_name(step) + "-")) found = name;
  }
  return found;
}

// What a resume falls back from: bytes that changed, a file that is missing or cut off, no
// manifest.
TEST(Writer, ADamagedCheckpointMakesWayForItsStepAndIsKept) {
  using Damage = std::function<void(const std::string& checkpoint)>;
  const std::vector<std::pair<std::string, Damage>> damages = {
      {"shard-00001-of-00002.h5",
       [](const std::string& path) {
         const File file(posix_disk(), path + "/shard-00001-of-00002.h5", O_WRONLY);
         file.write_at("!", 1, 4096 + 100);
       }},
      {"shard-00000-of-00002.h5",
       [](const std::string& path) {
         remove_file(posix_disk(), path + "/shard-00000-of-00002.h5");
       }},
      {"manifest.json",
       [](const std::string& path) { std::filesystem::resize_file(path + "/manifest.json", 100); }},
      {"manifest.json",
       [](const std::string& path) {
         remove_tree(posix_disk(), path);
         make_directory(posix_disk(), path);
       }},
  };
  for (const auto& [problem, damage] : damages) {
    const test::TempFolder folder;
    SaveWorld save(folder.path(), 2, test::small_tensors());
    ASSERT_TRUE(save.save(4).committed);
    ASSERT_TRUE(save.save(5).committed);
    const std::string path = folder.file(step_directory_name(5));
    damage(path);
    std::map<std::string, std::string> before;
    for (const std::string& name : list_directory(posix_disk(), path)) {
      before[name] = test::file_bytes(path + "/" + name);
    }

    const test::SaveOutcome again = save.save(5);
    ASSERT_TRUE(again.committed) << again.what();
    EXPECT_EQ(save.complaint_about_step(5), "");
    EXPECT_EQ(save.complaint_about_step(4), "");
    const std::string aside = damaged_name(save, 5);
    EXPECT_EQ(save.names(),
              (Names{aside, "latest", step_directory_name(4), step_directory_name(5)}));
    for (const std::string& said : {folder.file(aside), problem}) {
      EXPECT_NE(again.warning.find(said), std::string::npos) << said << " in\n" << again.warning;
    }
    for (const auto& [name, bytes] : before) EXPECT_EQ(folder.read(aside + "/" + name), bytes);
    EXPECT_EQ(list_directory(posix_disk(), folder.file(aside)).size(), before.size());
    // It isn't taken for a checkpoint, and isn't removed.
    EXPECT_EQ(committed_steps(posix_disk(), folder.path()), (std::vector<std::int64_t>{5, 4}));
    EXPECT_EQ(remove_leftovers(posix_disk(), folder.path()).removed, Names{});
    EXPECT_EQ(save.save(6).warning, "");
  }
}

TEST(Writer, ANaNFailsTheSaveAndIsNamed) {
  const test::TempFolder folder;
  for (const float bad :
       {std::numeric_limits<float>::quiet_NaN(), -std::numeric_limits<float>::infinity()}) {
    SaveWorld save(folder.path(), 1, test::small_tensors());
    sharding::State state = save.known(0).state();
    const sharding::StatePiece& piece = state.pieces[1];
    piece.data.as<float>()[17] = bad;
    save.writer(0).begin(3, make_save_uuid(), state);
    const SaveStatus status = save.writer(0).wait();
    EXPECT_EQ(status.phase, SavePhase::kFailed);
    ASSERT_TRUE(status.failure);
    EXPECT_NE(status.failure->message.find("param of block.0.up.weight, element 17 isn't finite"),
              std::string::npos)
        << status.failure->message;
    save.writer(0).discard();
    save.writer(0).wait();
    EXPECT_EQ(save.names(), Names{});
  }
}

TEST(Writer, AnInfinityInBF16FailsTheSave) {
  const test::TempFolder folder;
  SaveWorld save(folder.path(), 1, test::small_tensors());
  sharding::State state = save.known(0).state();
  for (const sharding::StatePiece& piece : state.pieces) {
    if (piece.data.dtype == DType::kBF16) piece.data.as<BFloat16>()[0].bits = 0x7f80;
  }
  save.writer(0).begin(3, make_save_uuid(), state);
  const SaveStatus status = save.writer(0).wait();
  ASSERT_TRUE(status.failure);
  EXPECT_NE(status.failure->message.find("exp_avg of embedding.weight, element 0"),
            std::string::npos)
      << status.failure->message;
}

// Pieces that don't cover the tensors are the engine's bug; a checkpoint that can't be loaded
// mustn't appear.
TEST(Writer, AHoleBetweenRanksIsNotCommitted) {
  const test::TempFolder folder;
  SaveWorld save(folder.path(), 2, test::small_tensors());
  const std::string uuid = make_save_uuid();
  sharding::State holed = save.known(1).state();
  holed.pieces.pop_back();
  save.writer(0).begin(1, uuid, save.known(0).state());
  save.writer(1).begin(1, uuid, holed);
  ASSERT_EQ(save.writer(0).wait().phase, SavePhase::kPrepared);
  ASSERT_EQ(save.writer(1).wait().phase, SavePhase::kPrepared);
  save.writer(0).commit(std::make_shared<nlohmann::json>(nlohmann::json::object()));
  const SaveStatus status = save.writer(0).wait();
  ASSERT_EQ(status.phase, SavePhase::kFailed);
  EXPECT_NE(status.failure->message.find("are in no shard"), std::string::npos)
      << status.failure->message;
  for (int rank : {0, 1}) save.writer(rank).discard();
  for (int rank : {0, 1}) save.writer(rank).wait();
  EXPECT_EQ(save.names(), Names{});
}

// After wait_copied the engine updates the state while the disk still writes.
TEST(Writer, UpdatesAfterTheCopyDontReachTheCheckpoint) {
  const std::vector<sharding::StateTensor> tensors = {{"a", "param", {5 << 20}, DType::kF32}};
  const test::TempFolder folder;
  SaveWorld save(folder.path(), 1, tensors, posix_disk(), 20 * kWrittenMiB, 2);
  save.known(0).fill(1);
  save.writer(0).begin(1, make_save_uuid(), save.known(0).state());
  save.writer(0).wait_copied();
  save.known(0).fill(2);
  ASSERT_EQ(save.writer(0).wait().phase, SavePhase::kPrepared);
  save.writer(0).commit(std::make_shared<nlohmann::json>(nlohmann::json::object()));
  ASSERT_EQ(save.writer(0).wait().phase, SavePhase::kCommitted);
  save.writer(0).finish();
  EXPECT_EQ(save.complaint_about_step(1), "");
}

TEST(Writer, ADiscardedSaveLeavesNothing) {
  const std::vector<sharding::StateTensor> tensors = {{"a", "param", {5 << 20}, DType::kF32}};
  const test::TempFolder folder;
  SaveWorld save(folder.path(), 2, tensors, posix_disk(), 0, 2);
  const std::string uuid = make_save_uuid();
  for (const int rank : {0, 1}) save.writer(rank).begin(1, uuid, save.known(rank).state());
  for (const int rank : {0, 1}) save.writer(rank).discard();
  for (const int rank : {0, 1}) {
    save.writer(rank).wait_copied();
    EXPECT_EQ(save.writer(rank).wait().phase, SavePhase::kIdle);
  }
  EXPECT_EQ(save.names(), Names{});
  EXPECT_TRUE(save.save(2).committed);
  EXPECT_EQ(save.complaint_about_step(2), "");
}

TEST(Writer, AWriterThatGoesAwayTakesItsSaveWithIt) {
  const test::TempFolder folder;
  {
    SaveWorld save(folder.path(), 2, test::small_tensors());
    const std::string uuid = make_save_uuid();
    for (const int rank : {0, 1}) save.writer(rank).begin(1, uuid, save.known(rank).state());
    for (const int rank : {0, 1}) save.writer(rank).wait();
  }
  EXPECT_EQ(list_directory(posix_disk(), folder.path()), Names{});
}

// Rank 1's thread unwinds (an exception, Ctrl-C) while rank 0 is already committing. The first
// one wins, and either way there is a whole checkpoint or none.
TEST(Writer, ARankThatGivesUpDuringTheCommitTakesNothingOutOfIt) {
  int committed = 0;
  for (int i = 0; i < 40; ++i) {
    const test::TempFolder folder;
    SaveWorld save(folder.path(), 2, test::small_tensors());
    const std::string uuid = make_save_uuid();
    for (const int rank : {0, 1}) {
      save.known(rank).fill(1);
      save.writer(rank).begin(1, uuid, save.known(rank).state());
    }
    for (const int rank : {0, 1}) {
      ASSERT_EQ(save.writer(rank).wait().phase, SavePhase::kPrepared);
    }
    if (i % 2 == 0) save.writer(1).discard();
    save.writer(0).commit(std::make_shared<nlohmann::json>(nlohmann::json::object()));
    if (i % 2 == 1) save.writer(1).discard();
    const SaveStatus status = save.writer(0).wait();
    save.writer(1).wait();
    if (status.phase == SavePhase::kCommitted) {
      ++committed;
      EXPECT_EQ(save.complaint_about_step(1), "");
      save.writer(0).finish();
    } else {
      save.writer(0).discard();
      save.writer(0).wait();
      EXPECT_EQ(save.names(), Names{});
    }
  }
  RecordProperty("committed", committed);
}

TEST(Writer, TheRingIsAsLargeAsItsBlocks) {
  EXPECT_EQ(staging_bytes({}), 4 * kWrittenMiB);
  EXPECT_EQ(staging_bytes({1}), 4 * kWrittenMiB);
  EXPECT_EQ(staging_bytes({4 * kWrittenMiB + 1, 2}), 4 * kWrittenMiB + 8192);
}

TEST(Writer, UuidsDiffer) {
  EXPECT_EQ(make_save_uuid().size(), 32u);
  EXPECT_NE(make_save_uuid(), make_save_uuid());
}

}  // namespace
}  // namespace sherd::checkpoint
