// Files that are put in place while an attacker works in the same folder: nothing outside is written to,
// and nothing is waited for.
#include "checkpoint/store/disk.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <filesystem>

#include "tests/checkpoint/support/hooked_disk.h"
#include "tests/support/values/error_text.h"
#include "tests/support/values/temp_folder.h"

namespace sherd::checkpoint {
namespace {

namespace fs = std::filesystem;

std::string refusal_to_open(const std::string& path, int flags) {
  return test::error_text<DataError>([&] { open_plain(posix_disk(), path, flags); });
}

TEST(Disk, OnlyAPlainFileIsOpenedAsOne) {
  const test::TempFolder folder;
  const std::string plain = folder.write("plain", "text");
  const std::string other = folder.file("other");
  open_plain(posix_disk(), plain, O_RDWR);

  fs::create_symlink(plain, other);
  EXPECT_EQ(refusal_to_open(other, O_RDONLY),
            other + ": is a symbolic link, where only a plain file is used");
  fs::remove(other);
  for (const int flags : {O_RDONLY, O_WRONLY, O_RDWR}) {
    ASSERT_EQ(::mkfifo(other.c_str(), 0600), 0);
    EXPECT_EQ(refusal_to_open(other, flags), other + ": isn't a plain file");
    fs::remove(other);
    fs::create_directory(other);
    EXPECT_EQ(refusal_to_open(other, flags), other + ": isn't a plain file");
    fs::remove(other);
  }
  EXPECT_EQ(refusal_to_open("/dev/full", O_WRONLY), "/dev/full: isn't a plain file");
}

TEST(Disk, AFileWithTwoNamesIsReadButNotWrittenTo) {
  const test::TempFolder folder;
  const std::string plain = folder.write("plain", "text");
  fs::create_hard_link(plain, folder.file("other"));
  open_plain(posix_disk(), plain, O_RDONLY);
  EXPECT_EQ(refusal_to_open(plain, O_WRONLY),
            plain + ": has another name too (a hard link), so it isn't written to");
}

TEST(Disk, AReplacedFileTakesANameAndNothingElse) {
  const test::TempFolder folder;
  const std::string path = folder.file("recipe.yaml");
  const std::string beside = path + ".tmp";
  const std::string victim = folder.write("victim", "untouched");
  using Put = std::function<void(const std::string&)>;
  const Put puts[] = {
      [](const std::string&) {},
      [&](const std::string& place) { fs::create_symlink(victim, place); },
      [&](const std::string& place) { fs::create_symlink(folder.file("nowhere"), place); },
      [&](const std::string& place) { fs::create_hard_link(victim, place); },
      [](const std::string& place) { ASSERT_EQ(::mkfifo(place.c_str(), 0600), 0); },
      [](const std::string& place) { std::ofstream(place) << "of a run that was cut off"; }};
  for (const Put& at_path : puts) {
    for (const Put& at_beside : puts) {
      at_path(path);
      at_beside(beside);
      replace_file(posix_disk(), path, "new");
      EXPECT_TRUE(fs::is_regular_file(fs::symlink_status(path)));
      EXPECT_EQ(folder.read("recipe.yaml"), "new");
      EXPECT_EQ(folder.read("victim"), "untouched");
      EXPECT_FALSE(fs::exists(fs::symlink_status(beside)));
      EXPECT_FALSE(fs::exists(folder.file("nowhere")));
      fs::remove(path);
    }
  }
}

TEST(Disk, AFileThatCannotBeReplacedIsTheOldOneAndLeavesNothingElse) {
  for (const std::string name : {"open", "pwrite", "fsync", "close", "rename"}) {
    const test::TempFolder folder;
    const std::string path = folder.write("recipe.yaml", "old");
    test::HookedDisk disk([&](const test::DiskCall& call) -> std::optional<std::int64_t> {
      if (call.name != name) return {};
      return -EIO;
    });
    EXPECT_THROW(replace_file(disk, path, "new"), DiskError) << name;
    EXPECT_EQ(folder.read("recipe.yaml"), "old") << name;
    EXPECT_FALSE(fs::exists(path + ".tmp")) << name;
  }
}

}  // namespace
}  // namespace sherd::checkpoint
