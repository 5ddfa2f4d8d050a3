// Two runs and one output folder.
#include "checkpoint/output_lock.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <optional>

#include "tests/checkpoint/support/hooked_disk.h"
#include "tests/support/temp_folder.h"

namespace sherd::checkpoint {
namespace {

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

}  // namespace
}  // namespace sherd::checkpoint
