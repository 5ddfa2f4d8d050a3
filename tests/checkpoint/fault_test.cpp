// Every call of a save fails once, with everything a file system may answer; and the disk is full
// after every number of bytes.
#include <gtest/gtest.h>
#include <sys/mount.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <string>
#include <vector>

#include "checkpoint/store/step_directory.h"
#include "checkpoint/writer.h"
#include "tests/checkpoint/support/hooked_disk.h"
#include "tests/checkpoint/support/save_world.h"
#include "tests/support/values/temp_folder.h"

namespace sherd::checkpoint {
namespace {

using Names = std::vector<std::string>;
using test::DiskCall;
using test::HookedDisk;
using test::SaveOutcome;
using test::SaveWorld;

/// Stands for a pwrite that writes the first half.
constexpr int kShortWrite = 0;

/// Answers one call, the n-th, with an error.
class OneFault {
 public:
  HookedDisk::Before hook() {
    return [this](const DiskCall& call) { return answer(call); };
  }
  void arm(int n, int error_number) {
    countdown_ = n;
    error_number_ = error_number;
    faulted_.clear();
  }
  /// The call that failed; empty if none did.
  const std::string& faulted() const { return faulted_; }

 private:
  std::optional<std::int64_t> answer(const DiskCall& call) {
    if (countdown_ < 0 || countdown_-- > 0) return {};
    if (error_number_ != kShortWrite) {
      faulted_ = call.what();
      return -error_number_;
    }
    if (!call.writes() || call.bytes.size() < 2) {
      faulted_ = "-";
      return {};
    }
    faulted_ = call.what();
    return static_cast<std::int64_t>(call.bytes.size() / 2);
  }

  int countdown_ = -1;
  int error_number_ = 0;
  std::string faulted_;
};

bool speaks_of_the_hint(const std::string& call) {
  return call.find("latest") != std::string::npos;
}

class EveryCall : public testing::TestWithParam<int> {};

TEST_P(EveryCall, FailedOnceFailsTheSaveCleanlyOrNotAtAll) {
  const int error_number = GetParam();
  const bool is_survived = error_number == EINTR || error_number == kShortWrite;
  OneFault fault;
  HookedDisk disk(fault.hook());
  const test::TempFolder folder;
  SaveWorld save(folder.path(), 2, test::small_tensors(), disk);
  ASSERT_TRUE(save.save(1).committed);

  std::int64_t step = 1;
  std::int64_t newest = 1;
  int num_calls = 0, num_failed = 0;
  for (int n = 0;; ++n) {
    fault.arm(n, error_number);
    const SaveOutcome outcome = save.save(++step);
    const std::string call = fault.faulted();
    if (call.empty()) break;
    if (call != "-") ++num_calls;
    SCOPED_TRACE("call " + std::to_string(n) + ": " + call);
    ASSERT_EQ(save.complaint_about_step(newest), "");
    if (outcome.committed) {
      ASSERT_EQ(save.complaint_about_step(step), "");
      EXPECT_TRUE(is_survived || speaks_of_the_hint(call));
      EXPECT_EQ(outcome.warning.empty(), is_survived) << outcome.warning;
    } else {
      ++num_failed;
      EXPECT_FALSE(is_survived) << outcome.what();
      ASSERT_TRUE(outcome.failure);
      EXPECT_EQ(outcome.failure->error_number, error_number);
      EXPECT_NE(outcome.what().find(::strerrorname_np(error_number)), std::string::npos);
      EXPECT_NE(outcome.what().find(outcome.failure->file), std::string::npos);
      EXPECT_NE(call.find(outcome.failure->file), std::string::npos) << outcome.what();
      // All that is left: what was there before.
      EXPECT_EQ(save.names(), (Names{"latest", step_directory_name(newest)}));
      ASSERT_TRUE(save.save(++step).committed);
      ASSERT_EQ(save.complaint_about_step(step), "");
    }
    remove_checkpoint(posix_disk(), folder.path(), newest, "test");
    newest = step;
  }
  // Two shards, a commit: far more calls than these if nothing was left out.
  EXPECT_GE(num_calls, error_number == kShortWrite ? 10 : 40);
  if (!is_survived) {
    EXPECT_GE(num_failed, 30);
  }
}

INSTANTIATE_TEST_SUITE_P(Faults, EveryCall,
                         testing::Values(EIO, ENOSPC, EINTR, EACCES, EMFILE, EDQUOT, kShortWrite),
                         [](const auto& test) {
                           return test.param == kShortWrite
                                      ? std::string("ShortWrite")
                                      : std::string(::strerrorname_np(test.param));
                         });

// The same where a damaged checkpoint of that step is in the way.
TEST(Fault, EveryCallFailedOnceWhileADamagedStepIsSavedAnewLosesNeither) {
  for (const int error_number : {EIO, ENOSPC}) {
    bool ran_through = false;
    int num_failed = 0;
    for (int n = 0; !ran_through; ++n) {
      OneFault fault;
      HookedDisk disk(fault.hook());
      const test::TempFolder folder;
      SaveWorld save(folder.path(), 1, test::small_tensors(), disk);
      for (const std::int64_t step : {1, 2}) ASSERT_TRUE(save.save(step).committed);
      const std::string index = folder.file("step-0000000002/index.h5");
      File(posix_disk(), index, O_WRONLY).write_at("damage", 6, 0);
      fault.arm(n, error_number);
      const SaveOutcome outcome = save.save(2);
      ran_through = fault.faulted().empty();
      SCOPED_TRACE("call " + std::to_string(n) + ": " + fault.faulted());
      ASSERT_EQ(save.complaint_about_step(1), "");
      int num_damaged = 0;
      for (const std::string& name : save.names()) {
        const std::string found = folder.read(name + "/index.h5");
        num_damaged += found.starts_with("damage");
        EXPECT_TRUE(name == "latest" || found.size() > 0) << name;
      }
      EXPECT_EQ(num_damaged, 1);
      num_failed += !outcome.committed;
      if (!outcome.committed) {
        ASSERT_TRUE(save.save(2).committed);
      }
      ASSERT_EQ(save.complaint_about_step(2), "");
    }
    EXPECT_GE(num_failed, 30);
  }
}

// From the n-th call on every call fails, those of the clean-up too. The run continues; what is
// left has no step- name and is removed at the next start.
TEST(Fault, ADiskThatStaysBrokenLosesNothing) {
  for (const int error_number : {EIO, ENOSPC}) {
    bool ran_through = false;
    for (int n = 0; !ran_through; ++n) {
      const test::TempFolder folder;
      {
        SaveWorld before(folder.path(), 1, test::small_tensors());
        ASSERT_TRUE(before.save(1).committed);
      }
      int calls = 0;
      HookedDisk disk([&](const DiskCall&) -> std::optional<std::int64_t> {
        return calls++ < n ? std::nullopt : std::optional<std::int64_t>(-error_number);
      });
      SaveWorld save(folder.path(), 2, test::small_tensors(), disk);
      const SaveOutcome outcome = save.save(2);
      ran_through = calls <= n;
      SCOPED_TRACE("broken from call " + std::to_string(n));
      ASSERT_EQ(save.complaint_about_step(1), "");
      if (outcome.committed || exists(posix_disk(), folder.file("step-0000000002"))) {
        EXPECT_EQ(save.complaint_about_step(2), "");
      }
      if (!outcome.committed) {
        EXPECT_TRUE(outcome.failure);
        EXPECT_FALSE(outcome.warning.empty()) << "what couldn't be removed must be named";
      }
      const Leftovers leftovers = remove_leftovers(posix_disk(), folder.path());
      EXPECT_EQ(leftovers.failures, Names{});
      for (const std::string& name : save.names()) EXPECT_NE(name[0], '.') << name;
      SaveWorld after(folder.path(), 2, test::small_tensors());
      ASSERT_TRUE(after.save(3).committed);
      ASSERT_EQ(after.complaint_about_step(3), "");
    }
  }
}

// ------------------------------------------------------------------------------ a full disk

/// Bytes run out: the write that crosses the limit is cut short, as file systems do, and whatever
/// comes after it gets ENOSPC.
class FullDisk {
 public:
  explicit FullDisk(std::int64_t bytes) : left_(bytes) {}
  HookedDisk::Before hook() {
    return [this](const DiskCall& call) -> std::optional<std::int64_t> {
      if (!call.writes()) return {};
      const auto bytes = static_cast<std::int64_t>(call.bytes.size());
      const std::int64_t taken = std::min(bytes, left_);
      left_ -= taken;
      if (taken == bytes) return {};
      was_full_ = true;
      return taken > 0 ? taken : -ENOSPC;
    };
  }
  bool was_full() const { return was_full_; }

 private:
  std::int64_t left_;
  bool was_full_ = false;
};

TEST(Fault, ADiskThatIsFullAfterAnyNumberOfBytesFailsTheSaveCleanly) {
  const test::TempFolder folder;
  SaveWorld before(folder.path(), 2, test::small_tensors());
  ASSERT_TRUE(before.save(1).committed);
  bool fits = false;
  int num_failed = 0;
  for (std::int64_t bytes = 0; !fits; bytes += 509) {
    FullDisk full(bytes);
    HookedDisk disk(full.hook());
    SaveWorld save(folder.path(), 2, test::small_tensors(), disk);
    const SaveOutcome outcome = save.save(2);
    fits = !full.was_full();
    SCOPED_TRACE(std::to_string(bytes) + " bytes free");
    if (!outcome.committed) {
      ++num_failed;
      ASSERT_TRUE(outcome.failure);
      EXPECT_EQ(outcome.failure->error_number, ENOSPC) << outcome.what();
      EXPECT_EQ(save.names(), (Names{"latest", "step-0000000001"}));
    } else {
      EXPECT_EQ(save.complaint_about_step(2), "");
      remove_checkpoint(posix_disk(), folder.path(), 2, "test");
    }
    ASSERT_EQ(save.complaint_about_step(1), "");
  }
  EXPECT_GT(num_failed, 50);
}

/// A file system in memory of some size, if this machine lets us.
class SmallDisk {
 public:
  explicit SmallDisk(std::int64_t bytes) {
    const std::string options = "size=" + std::to_string(bytes);
    error_number_ =
        ::mount("tmpfs", folder_.path().c_str(), "tmpfs", 0, options.c_str()) == 0 ? 0 : errno;
  }
  ~SmallDisk() {
    if (error_number_ == 0) ::umount2(folder_.path().c_str(), MNT_DETACH);
  }
  int error_number() const { return error_number_; }
  const test::TempFolder& folder() const { return folder_; }
  std::int64_t free_bytes() const {
    struct statvfs status {};
    ::statvfs(folder_.path().c_str(), &status);
    return static_cast<std::int64_t>(status.f_bavail * status.f_bsize);
  }

 private:
  test::TempFolder folder_;
  int error_number_ = 0;
};

TEST(Fault, ARealDiskThatIsFullAtAnySizeFailsTheSaveCleanly) {
  const SmallDisk disk(2 << 20);
  if (disk.error_number() != 0) {
    GTEST_SKIP() << "mounting a tmpfs is denied here: " << ::strerror(disk.error_number());
  }
  const test::TempFolder& folder = disk.folder();
  SaveWorld save(folder.path(), 2, test::small_tensors());
  ASSERT_TRUE(save.save(1).committed);
  const std::int64_t page = ::sysconf(_SC_PAGESIZE);
  bool fits = false;
  int num_failed = 0;
  for (std::int64_t left = 0; !fits; left += page) {
    const std::string filler(static_cast<std::size_t>(disk.free_bytes() - left), 'x');
    write_new_file(posix_disk(), folder.file("filler"), filler);
    ASSERT_EQ(disk.free_bytes(), left);
    const SaveOutcome outcome = save.save(2);
    SCOPED_TRACE(std::to_string(left) + " bytes free");
    ASSERT_EQ(save.complaint_about_step(1), "");
    if (outcome.committed) {
      ASSERT_EQ(save.complaint_about_step(2), "");
      fits = outcome.warning.empty();  // otherwise there was no room for the hint
      remove_checkpoint(posix_disk(), folder.path(), 2, "test");
    } else {
      ++num_failed;
      ASSERT_TRUE(outcome.failure);
      EXPECT_EQ(outcome.failure->error_number, ENOSPC) << outcome.what();
      EXPECT_EQ(save.names(), (Names{"filler", "latest", "step-0000000001"}));
    }
    remove_file(posix_disk(), folder.file("filler"));
  }
  EXPECT_GT(num_failed, 10);
  EXPECT_TRUE(save.save(3).committed);
}

// ------------------------------------------------------------------------------ odd file systems

/// Answers all calls of one name with one error.
HookedDisk::Before refusing(const std::string& name, int error_number) {
  return [=](const DiskCall& call) -> std::optional<std::int64_t> {
    if (call.name != name) return {};
    return -error_number;
  };
}

TEST(Fault, WhereDirectWritesAreRefusedTheCacheIsUsed) {
  const std::vector<sharding::StateTensor> tensors = {{"a", "param", {3 << 20}, DType::kF32}};
  for (const std::string name : {"open", "pwrite"}) {
    const test::TempFolder folder;
    int refused = 0;
    HookedDisk disk([&](const DiskCall& call) -> std::optional<std::int64_t> {
      const bool is_direct = name == "open" ? (call.flags & O_DIRECT) != 0
                                            : call.bytes.size() > (1 << 20) && refused == 0;
      if (call.name != name || !is_direct) return {};
      ++refused;
      return -EINVAL;
    });
    SaveWorld save(folder.path(), 1, tensors, disk);
    const SaveOutcome outcome = save.save(1);
    ASSERT_TRUE(outcome.committed) << outcome.what();
    EXPECT_EQ(save.complaint_about_step(1), "");
    EXPECT_EQ(refused, 1);
  }
}

TEST(Fault, AShortDirectWriteIsFinishedWhereverItStopped) {
  const std::vector<sharding::StateTensor> tensors = {{"a", "param", {3 << 20}, DType::kF32}};
  for (const std::int64_t done : {4096, 512, 1 << 20, 100000, 1}) {
    const test::TempFolder folder;
    int shortened = 0;
    HookedDisk disk([&](const DiskCall& call) -> std::optional<std::int64_t> {
      if (!call.writes() || call.bytes.size() < (2 << 20) || shortened++ > 1) return {};
      return done;
    });
    SaveWorld save(folder.path(), 1, tensors, disk);
    const SaveOutcome outcome = save.save(1);
    ASSERT_TRUE(outcome.committed) << done << ": " << outcome.what();
    EXPECT_EQ(save.complaint_about_step(1), "") << done;
    EXPECT_GT(shortened, 1);
  }
}

TEST(Fault, WithoutARenameThatReplacesNothingItLooksFirst) {
  const test::TempFolder folder;
  for (const int error_number : {EINVAL, ENOSYS}) {
    HookedDisk disk(refusing("rename_new", error_number));
    SaveWorld save(folder.path(), 1, test::small_tensors(), disk);
    ASSERT_TRUE(save.save(1).committed);
    EXPECT_EQ(save.complaint_about_step(1), "");
    const SaveOutcome again = save.save(1);
    EXPECT_NE(again.what().find("exists already"), std::string::npos) << again.what();
    remove_checkpoint(posix_disk(), folder.path(), 1, "test");
  }
}

// NFS: the answer to a rename is lost, the client asks again, and there is nothing to rename.
TEST(Fault, ARenameWhoseAnswerWasLostHasHappened) {
  const test::TempFolder folder;
  HookedDisk disk([](const DiskCall& call) -> std::optional<std::int64_t> {
    if (call.name != "rename_new") return {};
    posix_disk().rename(call.path, call.to);
    return -ENOENT;
  });
  SaveWorld save(folder.path(), 1, test::small_tensors(), disk);
  const SaveOutcome outcome = save.save(1);
  ASSERT_TRUE(outcome.committed) << outcome.what();
  EXPECT_EQ(save.complaint_about_step(1), "");
}

TEST(Fault, ARenameThatFoundNothingBecauseThereWasNothingFails) {
  const test::TempFolder folder;
  SaveWorld before(folder.path(), 1, test::small_tensors());
  ASSERT_TRUE(before.save(1).committed);  // another save's manifest has the step's name
  HookedDisk disk(refusing("rename_new", ENOENT));
  SaveWorld save(folder.path(), 1, test::small_tensors(), disk);
  EXPECT_FALSE(save.save(1).committed);
  EXPECT_FALSE(save.save(2).committed);
  EXPECT_EQ(save.names(), (Names{"latest", "step-0000000001"}));
}

}  // namespace
}  // namespace sherd::checkpoint
