// Two runs and one output folder.
#include "checkpoint/store/output_lock.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <memory>
#include <optional>

#include "tests/checkpoint/support/hooked_disk.h"
#include "tests/support/values/error_text.h"
#include "tests/support/values/temp_folder.h"

namespace sherd::checkpoint {
namespace {

namespace fs = std::filesystem;

std::string refusal_of(const std::string& folder, Disk& disk = posix_disk()) {
  try {
    OutputLock lock(disk, folder);
  } catch (const UsageError& error) {
    return error.what();
  }
  return "";
}

TEST(OutputLock, TheSecondRunIsRefusedAndToldOfTheFirst) {
  const test::TempFolder folder;
  std::optional<OutputLock> first(std::in_place, posix_disk(), folder.path());
  const std::string text = refusal_of(folder.path());
  EXPECT_NE(text.find("process " + std::to_string(::getpid()) + " on "), std::string::npos) << text;
  EXPECT_NE(text.find(" UTC"), std::string::npos) << text;
  EXPECT_NE(text.find(folder.path()), std::string::npos) << text;
  first.reset();
  EXPECT_EQ(refusal_of(folder.path()), "");
}

TEST(OutputLock, AnotherFolderIsFree) {
  const test::TempFolder folder, other;
  OutputLock lock(posix_disk(), folder.path());
  EXPECT_EQ(refusal_of(other.path()), "");
}

// The child holds the lock and is killed: nothing of it cleans up.
TEST(OutputLock, ACrashFreesTheFolder) {
  const test::TempFolder folder;
  int ready[2];
  ASSERT_EQ(::pipe(ready), 0);
  const pid_t child = ::fork();
  if (child == 0) {
    OutputLock lock(posix_disk(), folder.path());
    if (::write(ready[1], "x", 1) != 1) ::_exit(1);
    for (;;) ::pause();
  }
  char byte = 0;
  ASSERT_EQ(::read(ready[0], &byte, 1), 1);
  EXPECT_NE(refusal_of(folder.path()).find("process " + std::to_string(child)), std::string::npos);
  ::kill(child, SIGKILL);
  ::waitpid(child, nullptr, 0);
  EXPECT_EQ(refusal_of(folder.path()), "");
  ::close(ready[0]);
  ::close(ready[1]);
}

TEST(OutputLock, AFileSystemWithoutLocksIsRefusedWithTheReason) {
  const test::TempFolder folder;
  for (const int error_number : {ENOLCK, EOPNOTSUPP, ENOSYS}) {
    test::HookedDisk disk([&](const test::DiskCall& call) -> std::optional<std::int64_t> {
      if (call.name != "flock") return {};
      return -error_number;
    });
    const std::string text = refusal_of(folder.path(), disk);
    EXPECT_NE(text.find("has no locks"), std::string::npos) << text;
  }
}

// What the file says comes from a stranger: it must not reach a terminal as it is.
TEST(OutputLock, TheOwnersNameIsPrintedPlainly) {
  const test::TempFolder folder;
  OutputLock lock(posix_disk(), folder.path());
  folder.write(".lock", std::string(300, '\x1b'));
  EXPECT_EQ(refusal_of(folder.path()).find('\x1b'), std::string::npos);
}

// ------------------------------------------------------------------------------ a lock that is lost

std::string loss_of(const OutputLock& lock) {
  return test::error_text<LockLost>([&] { lock.check(); });
}

TEST(OutputLock, HoldsAsLongAsItsFileHasItsName) {
  const test::TempFolder folder;
  const OutputLock lock(posix_disk(), folder.path());
  lock.check();
  folder.write(".lock", "whatever stands in it");
  lock.check();
}

TEST(OutputLock, IsLostWithTheFolderTheFileOrTheirNames) {
  const test::TempFolder parent;
  const auto lock_in = [&](const std::string& name) {
    fs::create_directory(parent.file(name));
    return std::make_unique<OutputLock>(posix_disk(), parent.file(name));
  };
  const auto removed = lock_in("removed");
  fs::remove_all(parent.file("removed"));
  EXPECT_NE(loss_of(*removed).find("no longer exists"), std::string::npos) << loss_of(*removed);

  const auto renamed = lock_in("renamed");
  fs::rename(parent.file("renamed"), parent.file("elsewhere"));
  EXPECT_NE(loss_of(*renamed).find("no longer exists"), std::string::npos);
  parent.write("renamed", "a file where the folder was");
  EXPECT_NE(loss_of(*renamed).find("no longer exists"), std::string::npos);

  const auto cleaned = lock_in("cleaned");
  fs::remove(parent.file("cleaned/.lock"));
  EXPECT_NE(loss_of(*cleaned).find(parent.file("cleaned/.lock")), std::string::npos);
}

// Both runs believe that they have the folder; only one of them is right.
TEST(OutputLock, IsLostToARunThatTookTheFolderOver) {
  const test::TempFolder parent;
  const std::string run = parent.file("run");
  fs::create_directory(run);
  const OutputLock first(posix_disk(), run);
  fs::rename(run, parent.file("old"));
  fs::create_directory(run);
  const OutputLock second(posix_disk(), run);
  second.check();
  EXPECT_NE(loss_of(first).find("isn't the file that this run has locked"), std::string::npos)
      << loss_of(first);
}

// ------------------------------------------------------------------------------ no lock at all

TEST(OutputLock, ALinkAPipeAndASecondNameAreRefusedAndLeftAlone) {
  const test::TempFolder folder;
  const std::string victim = folder.write("victim", std::string(300, 'v'));
  const std::string lock = folder.file(".lock");
  const auto expect_refused = [&](const std::string& why) {
    const std::string text = refusal_of(folder.path());
    EXPECT_NE(text.find(lock + ": " + why), std::string::npos) << text;
    EXPECT_EQ(folder.read("victim"), std::string(300, 'v')) << why;
    fs::remove(lock);
  };
  fs::create_symlink(victim, lock);
  expect_refused("is a symbolic link");
  fs::create_hard_link(victim, lock);
  expect_refused("has another name too");
  ASSERT_EQ(::mkfifo(lock.c_str(), 0600), 0);
  expect_refused("isn't a plain file");
  fs::create_directory(lock);
  expect_refused("isn't a plain file");
  EXPECT_EQ(refusal_of(folder.path()), "");
}

}  // namespace
}  // namespace sherd::checkpoint
