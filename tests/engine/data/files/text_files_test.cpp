#include "engine/data/files/text_files.h"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>

#include "core/error.h"
#include "tests/support/values/error_text.h"
#include "tests/support/values/temp_folder.h"

namespace sherd::data {
namespace {

class TextFilesTest : public testing::Test {
 protected:
  std::vector<std::string> found(const std::string& path, std::string_view ending = "") {
    std::vector<std::string> names;
    for (const std::string& file : find_text_files(path, ending, "data.path").paths) {
      names.push_back(std::filesystem::relative(file, folder_.path()).string());
    }
    return names;
  }
  std::string error(const std::string& path, std::string_view ending = "") {
    return test::error_text<DataError>([&] { find_text_files(path, ending, "data.path"); });
  }
  using Names = std::vector<std::string>;
  test::TempFolder folder_;
};

TEST_F(TextFilesTest, TakesAFolderRecursivelyInByteOrderWithoutHiddenFiles) {
  for (const char* name : {"b.txt", "B.txt", "a/z.txt", "a.txt", "\xc3\xa4.txt", ".hidden",
                           ".git/config", "a/.x", "a/b/c/deep"}) {
    folder_.write(name, "text");
  }
  EXPECT_EQ(found(folder_.path()),
            (Names{"B.txt", "a.txt", "a/b/c/deep", "a/z.txt", "b.txt", "\xc3\xa4.txt"}));
}

TEST_F(TextFilesTest, FollowsLinkedFilesButNotLinkedFolders) {
  folder_.write("in/a.txt", "text");
  folder_.write("out/b.txt", "text");
  std::filesystem::create_symlink(folder_.file("out/b.txt"), folder_.file("in/b.txt"));
  std::filesystem::create_symlink(folder_.file("in"), folder_.file("in/loop"));
  std::filesystem::create_symlink(folder_.file("nowhere"), folder_.file("in/dangling"));
  EXPECT_EQ(find_text_files(folder_.file("in"), "", "data.path").paths,
            (Names{folder_.file("in/a.txt"), folder_.file("in/b.txt")}));
}

TEST_F(TextFilesTest, TakesTheFilesThatAGlobMatches) {
  for (const char* name : {"a/1.txt", "a/2.md", "b/3.txt", "c.txt/4"}) folder_.write(name, "text");
  EXPECT_EQ(found(folder_.file("*/*.txt")), (Names{"a/1.txt", "b/3.txt"}));
  EXPECT_EQ(found(folder_.file("{b,a}/[12]*")), (Names{"a/1.txt", "a/2.md"}));
}

TEST_F(TextFilesTest, TakesAnExistingPathThatLooksLikeAGlobAsItIs) {
  folder_.write("[a].txt", "text");
  folder_.write("a.txt", "text");
  EXPECT_EQ(found(folder_.file("[a].txt")), Names{"[a].txt"});
  EXPECT_EQ(found(folder_.file("[ab].txt")), Names{"a.txt"});
}

TEST_F(TextFilesTest, LeavesOutWhatTrainingRunsHaveWritten) {
  const std::vector<std::string> own = {"recipe.yaml",
                                        "metrics.jsonl",
                                        "memory.json",
                                        "time.json",
                                        "trace.json",
                                        "hooks.log",
                                        "on_save.json",
                                        "SAVE",
                                        "reference.safetensors",
                                        "recipe.yaml.tmp",
                                        "collectives_rank_1.txt",
                                        "best",
                                        "checkpoints/latest",
                                        "checkpoints/step-0000000005/manifest.json",
                                        "huggingface/config.json",
                                        "tensorboard/events.out.tfevents.1.host"};
  for (const std::string run : {"runs/a", "runs/b/c"}) {
    for (const std::string& name : own) folder_.write(run + "/" + name, "text");
  }
  folder_.write("runs/sweep.json", "text");
  folder_.write("sherd-state-0123", "text");
  // A run that was killed early, and one without checkpoints whose lock didn't come along.
  folder_.write("killed/.lock", "");
  folder_.write("killed/recipe.yaml", "text");
  folder_.write("copied/recipe.yaml", "text");
  folder_.write("copied/metrics.jsonl", "text");
  // Parts of runs on their own.
  folder_.write("step-0000000007/manifest.json", "text");
  folder_.write("step-0000000007/rank_0.bin", "text");
  folder_.write("events.out.tfevents.2.host", "text");
  // Data, whatever they are called.
  const Names data = {"a.txt",           "cooking/recipe.yaml", "log/metrics.jsonl",
                      "log/sweep.json",  "runs/a/notes.txt",    "step-1/text",
                      "tensorboard/text"};
  for (const std::string& name : data) folder_.write(name, "text");
  EXPECT_EQ(found(folder_.path()), data);
  EXPECT_EQ(find_text_files(folder_.path(), "", "data.path").num_of_runs, 2 * 15 + 2 + 1 + 2 + 2);
  EXPECT_EQ(found(folder_.file("runs/a")), Names{"runs/a/notes.txt"});
  EXPECT_EQ(found(folder_.file("runs/a/*")), Names{"runs/a/notes.txt"});
  EXPECT_EQ(error(folder_.file("copied")),
            folder_.file("copied") +
                ": the folder has no visible files but those of training runs; set data.path to a "
                "text file, a folder of them, or a glob.");
}

TEST_F(TextFilesTest, SaysWhetherAFileWasNamed) {
  const std::string file = folder_.write("a.bin", "text");
  EXPECT_TRUE(find_text_files(file, ".txt", "data.path").named);
  EXPECT_FALSE(find_text_files(folder_.path(), "", "data.path").named);
}

TEST_F(TextFilesTest, SaysWhatIsMissing) {
  const std::string rest = "; set data.path to a text file, a folder of them, or a glob.";
  EXPECT_EQ(error(""), "data.path is empty" + rest);
  const std::string missing = folder_.file("none.txt");
  EXPECT_EQ(error(missing), missing + ": no such file or folder" + rest);
  const std::string glob = folder_.file("*.txt");
  EXPECT_EQ(error(glob), glob + ": the glob matches no visible files" + rest);
  folder_.write(".hidden", "text");
  EXPECT_EQ(error(folder_.path()), folder_.path() + ": the folder has no visible files" + rest);
  folder_.write("a.txt", "text");
  EXPECT_EQ(error(folder_.path(), ".bin"),
            folder_.path() + ": the folder has no .bin files" + rest);
}

TEST_F(TextFilesTest, SaysWhichFolderItMayNotRead) {
  // Root may read everything, so for a moment the test runs as another user.
  constexpr uid_t kNobody = 65534;
  const bool is_root = ::geteuid() == 0;
  folder_.write("closed/a.txt", "text");
  ::chmod(folder_.path().c_str(), 0755);
  ::chmod(folder_.file("closed").c_str(), 0);
  if (is_root) {
    ASSERT_EQ(::seteuid(kNobody), 0);
  }
  const std::string said = error(folder_.path());
  if (is_root) {
    ASSERT_EQ(::seteuid(0), 0);
  }
  ::chmod(folder_.file("closed").c_str(), 0755);
  EXPECT_EQ(said,
            folder_.file("closed") +
                ": the folder can't be read (Permission denied); allow this user to read it.");
}

}  // namespace
}  // namespace sherd::data
