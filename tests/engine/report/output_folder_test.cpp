#include "engine/report/output_folder.h"

#include <gtest/gtest.h>

#include <filesystem>

#include "tests/checkpoint/support/hooked_disk.h"
#include "tests/support/values/error_text.h"
#include "tests/support/values/temp_folder.h"

namespace sherd::engine {
namespace {

namespace fs = std::filesystem;
using checkpoint::posix_disk;

TEST(OutputFolder, EachFolderThatIsMadeIsDurableInTheOneAboveIt) {
  const test::TempFolder folder;
  std::vector<std::string> calls;
  test::HookedDisk disk({}, [&](const test::DiskCall& call, std::int64_t result) {
    const bool counts = call.name == "mkdir" || call.name == "fsync";
    if (counts && result == 0) calls.push_back(call.what());
  });
  const OutputFolder output(disk, folder.file("runs/x/"));
  EXPECT_EQ(output.path(), folder.file("runs/x"));
  const std::string runs = folder.file("runs"), x = folder.file("runs/x");
  EXPECT_EQ(calls, (std::vector<std::string>{"mkdir " + runs + " ", "fsync " + folder.path() + " ",
                                             "mkdir " + x + " ", "fsync " + runs + " "}));
}

TEST(OutputFolder, AFolderThatCannotBeMadeIsAUsageError) {
  const test::TempFolder folder;
  folder.write("file", "");
  const std::string below = folder.file("file/runs/x");
  const std::string text = test::error_text<UsageError>([&] { OutputFolder(posix_disk(), below); });
  EXPECT_NE(text.find("run.output_dir " + below + ": can't be written: "), std::string::npos)
      << text;
  EXPECT_NE(test::error_text<UsageError>([&] {
              OutputFolder(posix_disk(), folder.file("file"));
            }).find("Not a directory"),
            std::string::npos);
}

TEST(OutputFolder, MayBeALinkToAFolderByItsOwnersChoice) {
  const test::TempFolder folder;
  fs::create_directory(folder.file("large_disk"));
  fs::create_symlink(folder.file("large_disk"), folder.file("run"));
  const OutputFolder output(posix_disk(), folder.file("run"));
  output.replace("recipe.yaml", "text");
  EXPECT_EQ(folder.read("large_disk/recipe.yaml"), "text");
}

TEST(OutputFolder, NothingIsWrittenOnceItIsAnotherRuns) {
  const test::TempFolder folder;
  const OutputFolder output(posix_disk(), folder.file("run"));
  output.replace("memory.json", "{}");
  fs::rename(folder.file("run"), folder.file("old"));
  const OutputFolder other(posix_disk(), folder.file("run"));
  EXPECT_THROW(output.replace("memory.json", "{}"), checkpoint::LockLost);
  EXPECT_FALSE(fs::exists(folder.file("run/memory.json")));
}

TEST(OutputFolder, IsTakenBackWithWhatTheRunWroteAndNothingElse) {
  const test::TempFolder folder;
  const std::vector<std::string> own = {"huggingface", "checkpoints"};
  const auto write_own = [&](const std::string& name) {
    folder.write(name + "/huggingface/config.json", "{}");
    fs::create_directory(folder.file(name + "/checkpoints"));
  };
  {
    const OutputFolder output(posix_disk(), folder.file("runs/new"));
    write_own("runs/new");
    output.take_back(own);
    EXPECT_FALSE(fs::exists(folder.file("runs"))) << "it has made that, too";
  }
  {
    const OutputFolder output(posix_disk(), folder.file("noted"));
    write_own("noted");
    folder.write("noted/notes.txt", "mine");
    output.take_back(own);
    EXPECT_EQ(folder.read("noted/notes.txt"), "mine");
    EXPECT_EQ(folder.read("noted/huggingface/config.json"), "{}");
  }
  {
    fs::create_directory(folder.file("empty"));
    const OutputFolder output(posix_disk(), folder.file("empty"));
    write_own("empty");
    output.take_back(own);
    EXPECT_TRUE(fs::exists(folder.file("empty")));
    EXPECT_TRUE(fs::is_empty(folder.file("empty")));
  }
  {
    write_own("resumed");
    const OutputFolder output(posix_disk(), folder.file("resumed"));
    output.take_back(own);
    EXPECT_EQ(folder.read("resumed/huggingface/config.json"), "{}");
  }
  {
    const OutputFolder output(posix_disk(), folder.file("moved"));
    write_own("moved");
    fs::rename(folder.file("moved"), folder.file("elsewhere"));
    const OutputFolder other(posix_disk(), folder.file("moved"));
    output.take_back(own);
    EXPECT_TRUE(fs::exists(folder.file("moved")));
    EXPECT_EQ(folder.read("elsewhere/huggingface/config.json"), "{}");
  }
}

}  // namespace
}  // namespace sherd::engine
