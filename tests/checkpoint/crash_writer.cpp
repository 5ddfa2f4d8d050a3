// What the crash tests end in the middle: a program that saves states with known contents and says
// "saved N" for each checkpoint that is acknowledged.
//
//   crash_writer loop OUTPUT WORLD COUNT            COUNT saves after the newest one; 0: forever
//   crash_writer once OUTPUT WORLD N                one save; ends before its n-th call that may
//                                                   change a file, which is after the one before
//   crash_writer once-any OUTPUT WORLD N            likewise, but any call counts
//   crash_writer rank OUTPUT WORLD N RANK UUID      one rank's part of step 1, likewise;
//                                                   rank 0 commits, too: the others have prepared
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "checkpoint/store/committed.h"
#include "checkpoint/store/output_lock.h"
#include "checkpoint/store/retention.h"
#include "checkpoint/store/step_directory.h"
#include "checkpoint/writer.h"
#include "tests/checkpoint/support/hooked_disk.h"
#include "tests/checkpoint/support/save_world.h"

namespace {

using namespace sherd;
using checkpoint::Disk;

void say(const std::string& line) {
  const std::string text = line + "\n";
  if (::write(STDOUT_FILENO, text.data(), text.size()) < 0) ::_exit(7);
}

void save_on(Disk& disk, const std::string& output, int world, std::int64_t count) {
  const checkpoint::OutputLock lock(disk, output);
  const std::string directory = checkpoint::prepare_checkpoints(disk, output);
  const checkpoint::Leftovers leftovers = checkpoint::remove_leftovers(disk, directory);
  SHERD_CHECK(leftovers.failures.empty(), "{}", leftovers.failures[0]);
  const checkpoint::Newest newest = checkpoint::newest_checkpoint(disk, directory);
  SHERD_CHECK(newest.refused.empty(), "{}: {}", newest.refused[0].path, newest.refused[0].reason);
  const std::int64_t first = newest.checkpoint ? newest.checkpoint->manifest().step + 1 : 1;

  // After a single save retention has something to remove, too.
  checkpoint::Retention retention(disk, directory, {.keep_last = count == 1 ? 1 : 2});
  test::SaveWorld save(directory, world, test::crash_tensors(), disk);
  for (std::int64_t step = first; count == 0 || step < first + count; ++step) {
    const test::SaveOutcome outcome = save.save_together(step);
    SHERD_CHECK(outcome.committed, "{}", outcome.what());
    say("saved " + std::to_string(step));
    retention.apply();
  }
  const checkpoint::RetentionReport report = retention.finish();
  SHERD_CHECK(report.problems.empty(), "{}", report.problems[0]);
}

void write_one_rank(Disk& disk, const std::string& output, int world, int rank,
                    const std::string& uuid) {
  const test::KnownState known(test::crash_tensors(), 1, rank, world);
  const test::AlignedBytes ring(checkpoint::kBlockBytes);
  checkpoint::Writer writer(
      {output + "/checkpoints", rank, world, ring.tensor(), 1, test::small_index, &disk});
  writer.begin(1, uuid, known.state());
  SHERD_CHECK(writer.wait().phase == checkpoint::SavePhase::kPrepared);
  say("prepared");
  if (rank == 0) {
    writer.commit(std::make_shared<nlohmann::json>(nlohmann::json::object()));
    SHERD_CHECK(writer.wait().phase == checkpoint::SavePhase::kCommitted);
    say("committed");
  }
  ::_exit(0);  // without a word to anyone, as a machine that is switched off
}

bool may_change_files(const test::DiskCall& call) {
  for (const char* name : {"close", "pread", "fstat", "lstat", "list"}) {
    if (call.name == name) return false;
  }
  return call.name != "open" || (call.flags & O_CREAT) != 0;
}

}  // namespace

int main(int argc, char** argv) {
  const std::vector<std::string> words(argv + 1, argv + argc);
  const std::string& mode = words.at(0);
  const int world = std::atoi(words.at(2).c_str());
  const int number = std::atoi(words.at(3).c_str());
  int calls = 0;
  test::HookedDisk ending([&](const test::DiskCall& call) -> std::optional<std::int64_t> {
    if (mode == "once" && !may_change_files(call)) return {};
    if (calls++ == number) ::_exit(9);
    return {};
  });
  if (mode == "loop") save_on(checkpoint::posix_disk(), words[1], world, number);
  if (mode.starts_with("once")) save_on(ending, words[1], world, 1);
  if (mode == "rank") {
    write_one_rank(ending, words[1], world, std::atoi(words.at(4).c_str()), words.at(5));
  }
  return 0;
}
