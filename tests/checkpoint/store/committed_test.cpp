// Directories as they may lie there: damaged, foreign, hostile. What isn't good is refused by name
// before anything of its stated size is allocated, and the checkpoint before it is found.
#include "checkpoint/store/committed.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <filesystem>

#include "checkpoint/reader.h"
#include "checkpoint/store/step_directory.h"
#include "checkpoint/store/verify.h"
#include "tests/checkpoint/support/allocation_meter.h"
#include "tests/checkpoint/support/checkpoint_builder.h"
#include "tests/checkpoint/support/hooked_disk.h"
#include "tests/checkpoint/support/manifest_editor.h"
#include "tests/support/values/error_text.h"
#include "tests/support/values/temp_folder.h"

namespace sherd::checkpoint {
namespace {

namespace fs = std::filesystem;
using nlohmann::ordered_json;
using test::framed;
using test::sample_tensors;
using test::unframed;

class Committed : public testing::Test {
 protected:
  test::Built build(std::int64_t step, int world = 2) {
    const auto tensors = sample_tensors();
    return test::build_checkpoint(folder_.path(), step, tensors, test::even_cut(tensors, world),
                                  static_cast<std::uint64_t>(step));
  }
  static std::string refusal(const std::string& path) {
    return test::error_text<DataError>([&] { Checkpoint(posix_disk(), path); });
  }
  const std::string& folder() const { return folder_.path(); }

 private:
  test::TempFolder folder_;
};

TEST_F(Committed, StepsAreFoundByTheirExactNamesNewestFirst) {
  for (const char* name : {"step-0000000009", "step-0000000100", "step-0000000020", "step-9",
                           "step-00000000200", "step-000000003x", ".tmp-step-0000000200-ab",
                           "step-0000000200.old", "latest", "damaged-step-0000000300-x"}) {
    fs::create_directory(folder() + "/" + name);
  }
  EXPECT_EQ(committed_steps(posix_disk(), folder()), (std::vector<std::int64_t>{100, 20, 9}));
  EXPECT_TRUE(committed_steps(posix_disk(), folder() + "/nothing").empty());
}

TEST_F(Committed, TheNewestGoodOneIsOpenedAndNewerOnesSayWhyNot) {
  build(1);
  build(2);
  const std::string bad = build(3).path;
  fs::resize_file(bad + "/shard-00001-of-00002.h5", 5000);
  fs::create_directory(folder() + "/step-0000000004");
  const Newest newest = newest_checkpoint(posix_disk(), folder());
  ASSERT_TRUE(newest.checkpoint);
  EXPECT_EQ(newest.checkpoint->manifest().step, 2);
  ASSERT_EQ(newest.refused.size(), 2u);
  EXPECT_NE(newest.refused[0].reason.find("step-0000000004: isn't a checkpoint: it holds no"),
            std::string::npos);
  EXPECT_NE(newest.refused[1].reason.find("step-0000000003/shard-00001-of-00002.h5: has 5000 byte"),
            std::string::npos);
}

// Nothing older may take its place, and nothing may set it aside.
TEST_F(Committed, ANewerFormatIsntTakenForDamage) {
  build(1);
  const std::string newer = build(2).path;
  nlohmann::ordered_json manifest = test::unframed(test::read_text(newer + "/manifest.json"));
  manifest["version"] = kFormatVersion + 1;
  test::write_text(newer + "/manifest.json", test::framed(manifest));
  EXPECT_NE(test::error_text<NewerFormat>([&] {
              newest_checkpoint(posix_disk(), folder());
            }).find("Use the newer program that wrote it"),
            std::string::npos);
}

TEST_F(Committed, AResumeThatFindsABadBlockGoesBackToTheStepBefore) {
  build(1);
  const test::Built bad = build(2);
  const std::string shard = bad.path + "/shard-00000-of-00002.h5";
  std::string bytes = test::read_text(shard);
  bytes[static_cast<std::size_t>(bad.manifest.shards[0].datasets[1].offset)] ^= 1;
  test::write_text(shard, bytes);
  const auto tensors = sample_tensors();
  const test::WantedState wanted(tensors, test::whole(tensors));
  std::vector<char> memory(static_cast<std::size_t>(kBlockBytes));
  const Tensor buffer{memory.data(), DType::kU8, kBlockBytes};
  Newest newest = newest_checkpoint(posix_disk(), folder());
  ASSERT_EQ(newest.checkpoint->manifest().step, 2);
  EXPECT_NE(test::error_text<DataError>([&] {
              load(*newest.checkpoint, wanted.state, Match::kEverything, buffer);
            }).find(shard),
            std::string::npos);
  newest = newest_checkpoint(posix_disk(), folder(), 2);
  ASSERT_EQ(newest.checkpoint->manifest().step, 1);
  load(*newest.checkpoint, wanted.state, Match::kEverything, buffer);
  EXPECT_EQ(wanted.wrong_pieces(1), 0);
}

TEST_F(Committed, SymbolicLinksInACheckpointsPlaceAreRefused) {
  const std::string real = build(7).path;
  for (const char* name : {"shard-00000-of-00002.h5", "manifest.json", "index.h5"}) {
    const std::string path = real + "/" + name;
    fs::rename(path, folder() + "/elsewhere");
    fs::create_symlink(folder() + "/elsewhere", path);
    EXPECT_EQ(refusal(real), path + ": is a symbolic link, where only a plain file is used");
    fs::remove(path);
    fs::rename(folder() + "/elsewhere", path);
  }
  fs::rename(real, folder() + "/elsewhere");
  fs::create_directory_symlink(folder() + "/elsewhere", real);
  EXPECT_EQ(refusal(real), real + ": isn't a directory (a symbolic link to one is refused)");
  const Newest newest = newest_checkpoint(posix_disk(), folder());
  EXPECT_FALSE(newest.checkpoint);
  EXPECT_EQ(newest.refused.size(), 1u);
}

TEST_F(Committed, WhatIsntAPlainFileIsRefusedWithoutWaitingForIt) {
  const std::string path = build(7).path;
  const std::string shard = path + "/shard-00001-of-00002.h5";
  fs::remove(shard);
  EXPECT_NE(refusal(path).find("shard-00001-of-00002.h5: open: No such file"), std::string::npos);
  ASSERT_EQ(::mkfifo(shard.c_str(), 0600), 0);
  EXPECT_EQ(refusal(path), shard + ": isn't a plain file");
  fs::remove(shard);
  fs::create_directory(shard);
  EXPECT_EQ(refusal(path), shard + ": isn't a plain file");
  fs::remove(shard);
  fs::remove(path + "/manifest.json");
  ASSERT_EQ(::mkfifo((path + "/manifest.json").c_str(), 0600), 0);
  EXPECT_EQ(refusal(path), path + "/manifest.json: isn't a plain file");
}

TEST_F(Committed, ADirectoryRenamedToAnotherStepIsRefused) {
  const std::string path = build(7).path;
  const std::string other = folder() + "/step-0000000008";
  fs::rename(path, other);
  EXPECT_EQ(refusal(other),
            other + "/manifest.json: is of step 7, but its directory is named for another step");
  // Under a name of the owner's own, it is what it is.
  fs::rename(other, folder() + "/best");
  EXPECT_EQ(refusal(folder() + "/best/"), "(no error)");
}

TEST_F(Committed, ForeignDirectoriesAndFilesAreNoCheckpoints) {
  fs::create_directory(folder() + "/weights");
  EXPECT_NE(refusal(folder() + "/weights").find("isn't a checkpoint: it holds no manifest.json"),
            std::string::npos);
  test::write_text(folder() + "/weights/manifest.json", "{\"name\":\"my-web-app\"}");
  EXPECT_NE(refusal(folder() + "/weights").find("isn't a Sherd checkpoint's manifest"),
            std::string::npos);
  EXPECT_NE(refusal(folder() + "/weights/manifest.json").find("isn't a directory"),
            std::string::npos);
  EXPECT_NE(refusal(folder() + "/nothing").find("No such file"), std::string::npos);
}

TEST_F(Committed, FilesThatDontBelongAreNeverOpenedButNamed) {
  const std::string path = build(7).path;
  fs::copy_file(path + "/shard-00000-of-00002.h5", path + "/shard-00000-of-00003.h5");
  fs::create_symlink("/etc/passwd", path + "/shard-00002-of-00002.h5");
  const VerifyReport report = verify(posix_disk(), path, VerifyDepth::kDeep);
  EXPECT_TRUE(report.good());
  EXPECT_EQ(report.notes, (std::vector<std::string>{
                              path + "/shard-00000-of-00003.h5 isn't part of the checkpoint",
                              path + "/shard-00002-of-00002.h5 isn't part of the checkpoint"}));
}

// The sizes that a hostile manifest states aren't allocated.
TEST_F(Committed, SizesThatAManifestStatesAreNeverAllocated) {
  const std::string path = build(7).path;
  const std::string text = test::read_text(path + "/manifest.json");
  std::vector<std::string> hostile;
  for (const char* pointer :
       {"/shards/0/bytes", "/shards/0/datasets/0/numel", "/shards/0/datasets/0/offset",
        "/shards/0/pieces/0/0", "/shards/0/pieces/0/1", "/shards/0/pieces/0/2",
        "/shards/0/pieces/0/3", "/index/bytes", "/tensors/0/shape/0", "/block_bytes", "/step"}) {
    for (const char* size : {"9223372036854775808", "9223372036854775807", "18446744073709551615",
                             "9007199254740992", "2251799813685248", "68719476736"}) {
      ordered_json json = unframed(text);
      json.at(ordered_json::json_pointer(pointer)) = ordered_json::parse(size);
      hostile.push_back(framed(json));
    }
  }
  // A consistent lie: one tensor of 2^50 elements, with the file to match.
  ordered_json lie = unframed(text);
  const std::int64_t numel = std::int64_t{1} << 50;
  lie["tensors"] = ordered_json::parse(
      R"([{"name":"a","kind":"param","dtype":"f32","shape":[1125899906842624]}])");
  lie["shards"] = ordered_json::array({ordered_json{
      {"bytes", 8192 + numel * 4},
      {"metadata_checksum", "0123456789abcdef"},
      {"datasets", ordered_json::array({ordered_json{{"kind", "param"},
                                                     {"dtype", "f32"},
                                                     {"numel", numel},
                                                     {"offset", 4096},
                                                     {"checksums", ordered_json::array()}}})},
      {"pieces", ordered_json::array({ordered_json::array({0, 0, numel, 0})})}}});
  hostile.push_back(framed(lie));
  hostile.push_back(framed(unframed(text), ",\"x\":" + std::string(1'000'000, '[')));
  hostile.push_back(framed(unframed(text), ",\"x\":{\"a\":" + std::string(1'000'000, '{')));

  for (const std::string& manifest : hostile) {
    test::write_text(path + "/manifest.json", manifest);
    const test::AllocationMeter meter;
    const std::string found = refusal(path);
    EXPECT_TRUE(found.starts_with(path + "/")) << found;
    // The text itself is the largest thing there is; vectors grow by doubling.
    EXPECT_LE(meter.largest(), 4 * manifest.size()) << found;
  }
}

TEST_F(Committed, AManifestTooLargeToBeOneIsntEvenRead) {
  const std::string path = build(7).path;
  fs::resize_file(path + "/manifest.json", std::uintmax_t{1} << 40);  // sparse
  const test::AllocationMeter meter;
  EXPECT_EQ(refusal(path), path +
                               "/manifest.json: has 1099511627776 bytes; a manifest has at most "
                               "268435456");
  EXPECT_LE(meter.largest(), 65536u);
}

using CommittedSlow = Committed;

TEST_F(CommittedSlow, AManyValuedTextIsRefusedWhileItIsParsed) {
  const std::string path = build(7).path;
  std::string many = ",\"x\":[0";
  for (int i = 0; i < (1 << 24); ++i) many += ",0";
  test::write_text(path + "/manifest.json",
                   framed(unframed(test::read_text(path + "/manifest.json")), many + "]"));
  EXPECT_EQ(refusal(path), path + "/manifest.json: more than 16777216 JSON values");
}

// With keep_last 1: between the look at the folder and the opening the run has saved, and removed what was found.
TEST_F(Committed, WhatItsRunRemovesMeanwhileIsntRefusedAndTheNewestIsLookedForAgain) {
  build(1);
  std::int64_t step = 1;
  test::HookedDisk disk([&](const test::DiskCall& call) -> std::optional<std::int64_t> {
    if (call.name == "open" && step < 4 && call.path.ends_with(step_directory_name(step))) {
      build(step + 1);
      remove_checkpoint(posix_disk(), folder(), step, "test");
      ++step;
    }
    return std::nullopt;
  });
  const Newest newest = newest_checkpoint(disk, folder());
  ASSERT_TRUE(newest.checkpoint);
  EXPECT_EQ(newest.checkpoint->manifest().step, 4);
  EXPECT_TRUE(newest.refused.empty());
}

}  // namespace
}  // namespace sherd::checkpoint
