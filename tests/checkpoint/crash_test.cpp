// A process that saves is ended without warning: at random moments, at every system call, one rank
// alone. What was acknowledged is there, what is there is whole, and the next start continues.
#include <gtest/gtest.h>
#include <sys/ptrace.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <filesystem>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "checkpoint/store/committed.h"
#include "checkpoint/store/step_directory.h"
#include "checkpoint/writer.h"
#include "tests/checkpoint/support/child.h"
#include "tests/checkpoint/support/hooked_disk.h"
#include "tests/checkpoint/support/save_world.h"
#include "tests/support/values/temp_folder.h"

namespace sherd::checkpoint {
namespace {

using test::Child;

std::string words(std::int64_t value) {
  return std::to_string(value);
}

/// The last step that a crash_writer has said to be saved; 0: none.
std::int64_t last_saved(const std::string& output) {
  const std::size_t line = output.rfind("saved ");
  if (line == std::string::npos || output.find('\n', line) == std::string::npos) return 0;
  return std::stoll(output.substr(line + 6));
}

/// Everything under a step- name from `first` on must be whole. Returns the newest step, or 0.
std::int64_t check_all(const std::string& directory, std::int64_t first = 0) {
  if (!std::filesystem::exists(directory)) return 0;
  std::int64_t newest = 0;
  for (const std::string& name : list_directory(posix_disk(), directory)) {
    if (!name.starts_with("step-")) continue;
    const std::int64_t step = std::stoll(name.substr(5));
    newest = std::max(newest, step);
    if (step < first) continue;
    EXPECT_EQ(test::complaint_about(directory + "/" + name, step, test::crash_tensors()), "");
  }
  return newest;
}

/// A start after a crash continues after the newest checkpoint, and removes everything that the crash left.
void expect_next_start_works(const std::string& output, int world, std::int64_t newest) {
  Child child({SHERD_CRASH_WRITER, "loop", output, words(world), "1"});
  EXPECT_EQ(child.wait(), 0);
  EXPECT_EQ(child.output(), "saved " + words(newest + 1) + "\n");
  EXPECT_EQ(check_all(output + "/checkpoints"), newest + 1);
  for (const std::string& name : list_directory(posix_disk(), output + "/checkpoints")) {
    EXPECT_TRUE(name.starts_with("step-") || name == "latest") << name;
  }
}

/// One folder's life: killed `times` times, then started once more. Returns the last step that was
/// acknowledged. Folders are given up after some kills because retention, which begins by reading
/// everything, would never come to removing anything among hundreds of checkpoints.
std::int64_t kill_in_one_folder(int times, std::mt19937& random) {
  const test::TempFolder folder;
  const std::string directory = folder.file("checkpoints");
  std::int64_t acknowledged = 0, newest = 0;
  for (int i = 0; i < times && !testing::Test::HasFailure(); ++i) {
    Child child({SHERD_CRASH_WRITER, "loop", folder.path(), words(1 + i % 3), "0"});
    // Most have saved something, however slow the machine is; the others may be hit at their start.
    if (i % 4 != 0) child.read_some();
    const std::chrono::microseconds delay(random() % 25'000);
    child.read_until(std::chrono::steady_clock::now() + delay);
    child.kill();
    const int status = child.wait();
    EXPECT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL)
        << "it ended by itself, with status " << status;
    acknowledged = std::max(acknowledged, last_saved(child.output()));
    // Checkpoints don't change: what was seen whole is looked at again at the end only.
    newest = std::max(newest, check_all(directory, newest));
    EXPECT_GE(newest, acknowledged) << "kill " << i << " lost a checkpoint";
  }
  expect_next_start_works(folder.path(), 2, check_all(directory));
  return acknowledged;
}

void kill_at_random_moments(int times) {
  constexpr int kInOneFolder = 40;
  std::mt19937 random(20260101);
  std::int64_t acknowledged = 0;
  for (int done = 0; done < times && !testing::Test::HasFailure(); done += kInOneFolder) {
    acknowledged += kill_in_one_folder(std::min(kInOneFolder, times - done), random);
  }
  EXPECT_GE(acknowledged, times / 2);
  testing::Test::RecordProperty("acknowledged", words(acknowledged));
}

TEST(Crash, KilledAtRandomMomentsLosesNothing) {
  kill_at_random_moments(200);
}

TEST(CrashSlow, KilledAtRandomMomentsLosesNothing) {
  kill_at_random_moments(10'000);
}

/// `run` starts and ends a child for n = 0, 1, ... in a folder that has checkpoint 1; it returns
/// false when n is beyond the last call.
template <class Run>
int end_before_every_call(const Run& run) {
  for (int n = 0;; ++n) {
    const test::TempFolder folder(test::memory_folder());
    {
      test::HookedDisk disk({});  // no call of this save is of interest
      test::SaveWorld before(prepare_checkpoints(disk, folder.path()), 2, test::crash_tensors(),
                             disk);
      EXPECT_TRUE(before.save(1).committed);
    }
    std::int64_t saved = 0;
    const bool was_ended = run(folder.path(), n, saved);
    const std::int64_t newest = check_all(folder.file("checkpoints"));
    EXPECT_GE(newest, std::max<std::int64_t>(saved, 1)) << "ended before call " << n;
    expect_next_start_works(folder.path(), 1, newest);
    if (!was_ended || testing::Test::HasFailure()) return n;
  }
}

int end_before_every_call_of(const std::string& mode) {
  return end_before_every_call([&](const std::string& output, int n, std::int64_t& saved) {
    Child child({SHERD_CRASH_WRITER, mode, output, "2", words(n)});
    const int status = child.wait();
    saved = last_saved(child.output());
    EXPECT_TRUE(WIFEXITED(status) && (WEXITSTATUS(status) == 9 || status == 0)) << status;
    return status != 0;
  });
}

// A save of two ranks, its commit, and the removal of the checkpoint before it.
TEST(Crash, EndedBeforeEveryCallThatChangesAFileLosesNothing) {
  const int num_calls = end_before_every_call_of("once");
  EXPECT_GT(num_calls, 50);
  RecordProperty("calls", num_calls);
}

TEST(CrashSlow, EndedBeforeAnyCallOfASaveLosesNothing) {
  EXPECT_GT(end_before_every_call_of("once-any"), 200);
}

// ------------------------------------------------------------------------------ ptrace

bool may_change_files(const __ptrace_syscall_info& info) {
  static const std::set<std::uint64_t> kCalls = {
    SYS_pwrite64,
    SYS_write,
    SYS_fsync,
    SYS_ftruncate,
    SYS_mkdirat,
    SYS_renameat2,
    SYS_unlinkat,
    SYS_flock,
    SYS_fallocate,
#if defined(__x86_64__)  // aarch64 has only those with a folder
    SYS_mkdir,
    SYS_rename,
    SYS_unlink,
    SYS_rmdir,
#endif
  };
  if (info.entry.nr == SYS_openat) return (info.entry.args[2] & O_CREAT) != 0;
  return kCalls.contains(info.entry.nr);
}

/// Runs a traced child and kills it at the n-th entry into such a call, whichever thread makes it.
/// Returns whether it was killed.
bool kill_at_system_call(Child& child, int n) {
  int entries = 0;
  bool was_killed = false;
  bool is_first = true;
  for (;;) {
    int status = 0;
    const pid_t thread = ::waitpid(-1, &status, __WALL);
    if (thread < 0) return was_killed;
    if (WIFEXITED(status) || WIFSIGNALED(status)) {
      if (thread != child.pid()) continue;
      child.has_ended(status);
      return was_killed;
    }
    if (is_first) {
      ::ptrace(PTRACE_SETOPTIONS, thread, 0,
               PTRACE_O_TRACESYSGOOD | PTRACE_O_TRACECLONE | PTRACE_O_EXITKILL);
      is_first = false;
    }
    int signal = 0;
    if (WSTOPSIG(status) == (SIGTRAP | 0x80)) {
      __ptrace_syscall_info info{};
      ::ptrace(PTRACE_GET_SYSCALL_INFO, thread, sizeof info, &info);
      if (info.op == PTRACE_SYSCALL_INFO_ENTRY && may_change_files(info) && entries++ == n) {
        ::kill(child.pid(), SIGKILL);
        was_killed = true;
        continue;
      }
    } else if (WSTOPSIG(status) != SIGTRAP && WSTOPSIG(status) != SIGSTOP) {
      signal = WSTOPSIG(status);
    }
    ::ptrace(PTRACE_SYSCALL, thread, 0, signal);
  }
}

bool tracing_works() {
  Child child({"/bin/true"}, Child::Trace::kYes);
  int status = 0;
  ::waitpid(child.pid(), &status, 0);
  if (WIFSTOPPED(status)) return true;
  child.has_ended(status);
  return false;
}

// As above, but the calls are the kernel's: whatever the Disk seam doesn't see counts, too.
TEST(Crash, KilledAtEverySystemCallOfASaveLosesNothing) {
  if (!tracing_works()) GTEST_SKIP() << "ptrace is denied here";
  const int num_calls =
      end_before_every_call([](const std::string& output, int n, std::int64_t& saved) {
        Child child({SHERD_CRASH_WRITER, "loop", output, "2", "1"}, Child::Trace::kYes);
        const bool was_killed = kill_at_system_call(child, n);
        child.wait();
        saved = last_saved(child.output());
        return was_killed;
      });
  EXPECT_GT(num_calls, 50);
  RecordProperty("calls", num_calls);
}

// ------------------------------------------------------------------------------ one rank alone

/// One rank as a process of its own, which ends before its n-th call: whether it ran through.
bool run_rank(const std::string& output, int rank, int n, const std::string& uuid,
              std::string* said = nullptr) {
  Child child({SHERD_CRASH_WRITER, "rank", output, "2", words(n), words(rank), uuid});
  const int status = child.wait();
  EXPECT_TRUE(WIFEXITED(status) && (WEXITSTATUS(status) == 9 || status == 0)) << status;
  if (said) *said = child.output();
  return status == 0;
}

/// The other rank, here in this process.
class Survivor {
 public:
  Survivor(const std::string& directory, int rank)
      : known_(test::crash_tensors(), 1, rank, 2),
        ring_(kBlockBytes),
        writer_({directory, rank, 2, ring_.tensor(), 1, test::small_index}) {}

  Writer& prepare(const std::string& uuid) {
    writer_.begin(1, uuid, known_.state());
    EXPECT_EQ(writer_.wait().phase, SavePhase::kPrepared);
    return writer_;
  }

 private:
  test::KnownState known_;
  test::AlignedBytes ring_;
  Writer writer_;
};

void expect_next_save_works(const std::string& directory) {
  test::SaveWorld next(directory, 2, test::crash_tensors());
  const test::SaveOutcome outcome = next.save(2);
  EXPECT_TRUE(outcome.committed) << outcome.what();
  EXPECT_EQ(check_all(directory), 2);
}

// Rank 1 dies. Rank 0 then commits without being asked to: there is no checkpoint unless rank 1
// had finished its part.
TEST(Crash, ARankThatDiesAloneNeverBecomesPartOfACheckpoint) {
  int num_committed = 0;
  bool ran_through = false;
  for (int n = 0; !ran_through && !HasFailure(); ++n) {
    const test::TempFolder folder(test::memory_folder());
    const std::string directory = prepare_checkpoints(posix_disk(), folder.path());
    const std::string uuid = make_save_uuid();
    ran_through = run_rank(folder.path(), 1, n, uuid);
    SCOPED_TRACE("rank 1 died before call " + words(n));

    Survivor survivor(directory, 0);
    Writer& writer = survivor.prepare(uuid);
    writer.commit(std::make_shared<nlohmann::json>(nlohmann::json::object()));
    const SaveStatus status = writer.wait();
    if (status.phase == SavePhase::kCommitted) {
      ++num_committed;
      EXPECT_EQ(check_all(directory), 1);
      writer.finish();
    } else {
      EXPECT_FALSE(ran_through) << status.failure->message;
      for (const char* part :
           {"the checkpoint of step 1 wasn't saved", "part-00001-of-00002.json"}) {
        EXPECT_NE(status.failure->message.find(part), std::string::npos) << status.failure->message;
      }
      writer.discard();
      writer.wait();
      // Not even what the dead rank had written is left.
      EXPECT_EQ(list_directory(posix_disk(), directory), std::vector<std::string>{});
    }
    expect_next_save_works(directory);
  }
  // Whole parts only: at the end, or when all that was missing was the last close.
  EXPECT_GE(num_committed, 1);
  EXPECT_LE(num_committed, 2);
}

// Rank 0 dies, during its own part or the commit. Rank 1 hears nothing more and gives up: there is
// a whole checkpoint or none, and rank 1 takes nothing out of a whole one.
TEST(Crash, ARankZeroThatDiesAloneLeavesAWholeCheckpointOrNone) {
  int num_whole = 0, num_calls = 0;
  bool ran_through = false;
  for (; !ran_through && !HasFailure(); ++num_calls) {
    const test::TempFolder folder(test::memory_folder());
    const std::string directory = prepare_checkpoints(posix_disk(), folder.path());
    const std::string uuid = make_save_uuid();
    SCOPED_TRACE("rank 0 died before call " + words(num_calls));
    Survivor survivor(directory, 1);
    Writer& writer = survivor.prepare(uuid);
    std::string said;
    ran_through = run_rank(folder.path(), 0, num_calls, uuid, &said);
    writer.discard();
    writer.wait();
    const bool whole = check_all(directory) == 1;  // says so if it is there and isn't whole
    num_whole += whole;
    EXPECT_TRUE(whole || said.find("committed") == std::string::npos);
    expect_next_save_works(directory);
    EXPECT_EQ(remove_leftovers(posix_disk(), directory).failures, std::vector<std::string>{});
    EXPECT_EQ(check_all(directory), 2);
  }
  EXPECT_GT(num_calls, 40);
  EXPECT_GE(num_whole, 2);
  EXPECT_LT(num_whole, num_calls / 2);
}

}  // namespace
}  // namespace sherd::checkpoint
