// The folder changes under a run that saves into it: what is another run's now isn't touched, and what
// is only missing is made again.
#include <gtest/gtest.h>

#include <filesystem>

#include "checkpoint/store/committed.h"
#include "checkpoint/store/step_directory.h"
#include "tests/checkpoint/support/save_world.h"
#include "tests/support/values/temp_folder.h"

namespace sherd::checkpoint {
namespace {

namespace fs = std::filesystem;

/// One rank's writer in the folder of a run that holds its lock.
class LockedRun {
 public:
  LockedRun()
      : output_((fs::create_directory(folder_.file("run")), folder_.file("run"))),
        lock_(posix_disk(), output_),
        directory_(prepare_checkpoints(posix_disk(), output_)),
        ring_(kBlockBytes),
        writer_({.directory = directory_,
                 .ring = ring_.tensor(),
                 .build_index = test::small_index,
                 .lock = &lock_}),
        known_(test::small_tensors(), 0, 0, 1) {}

  SaveStatus prepare(std::int64_t step) {
    known_.fill(step);
    writer_.begin(step, make_save_uuid(), known_.state());
    writer_.wait_copied();
    return writer_.wait();
  }
  SaveStatus commit() {
    writer_.commit(std::make_shared<nlohmann::json>(nlohmann::json::object()));
    return writer_.wait();
  }
  void finish() { writer_.finish(); }
  void discard() {
    writer_.discard();
    writer_.wait();
  }
  /// Another run gets a folder of the same name.
  void give_away() const {
    fs::rename(output_, folder_.file("old"));
    fs::create_directories(directory_);
    folder_.write("run/.lock", "another run's");
  }
  std::vector<std::string> names(const std::string& where) const {
    return list_directory(posix_disk(), folder_.file(where + "/checkpoints"));
  }
  const std::string& directory() const { return directory_; }

 private:
  test::TempFolder folder_;
  std::string output_;
  OutputLock lock_;
  std::string directory_;
  test::AlignedBytes ring_;
  Writer writer_;
  test::KnownState known_;
};

using Names = std::vector<std::string>;

TEST(LockLost, BeforeACommitTheSaveFailsAndNothingIsNamed) {
  LockedRun run;
  ASSERT_EQ(run.prepare(1).phase, SavePhase::kPrepared);
  run.give_away();
  const SaveStatus status = run.commit();
  EXPECT_EQ(status.phase, SavePhase::kFailed);
  ASSERT_TRUE(status.failure);
  EXPECT_TRUE(status.failure->lock_lost) << status.failure->message;
  run.discard();
  EXPECT_EQ(run.names("run"), Names{}) << "of the run that has the folder now";
}

// The other run even has a temporary directory of the same name, so that nothing else would stop us.
TEST(LockLost, IsWhatStopsACommitThatNothingElseWould) {
  LockedRun run;
  ASSERT_EQ(run.prepare(1).phase, SavePhase::kPrepared);
  fs::remove(run.directory() + "/../.lock");
  const SaveStatus status = run.commit();
  EXPECT_EQ(status.phase, SavePhase::kFailed);
  ASSERT_TRUE(status.failure);
  EXPECT_TRUE(status.failure->lock_lost) << status.failure->message;
  EXPECT_EQ(committed_steps(posix_disk(), run.directory()), std::vector<std::int64_t>{});
  run.discard();
}

TEST(LockLost, BeforeAShardIsWrittenNothingIsMade) {
  LockedRun run;
  run.give_away();
  const SaveStatus status = run.prepare(1);
  EXPECT_EQ(status.phase, SavePhase::kFailed);
  ASSERT_TRUE(status.failure);
  EXPECT_TRUE(status.failure->lock_lost) << status.failure->message;
  run.discard();
  EXPECT_EQ(run.names("run"), Names{});
}

TEST(LockLost, IsNotAFolderOfCheckpointsThatIsGoneItIsMadeAgain) {
  LockedRun run;
  ASSERT_EQ(run.prepare(1).phase, SavePhase::kPrepared);
  ASSERT_EQ(run.commit().phase, SavePhase::kCommitted);
  run.finish();
  fs::remove_all(run.directory());
  ASSERT_EQ(run.prepare(2).phase, SavePhase::kPrepared);
  ASSERT_EQ(run.commit().phase, SavePhase::kCommitted);
  run.finish();
  EXPECT_EQ(run.names("run"), (Names{"latest", "step-0000000002"}));
}

// A step that another model's checkpoint has can't be saved, and that checkpoint isn't read for it:
// its shards may be as large as they like.
TEST(LockLost, ACheckpointOfAnotherModelInTheWayIsNeitherReadNorReplaced) {
  LockedRun run;
  const std::vector<sharding::StateTensor> other = {{"another", "param", {3}, DType::kF32}};
  test::SaveWorld others(run.directory(), 1, other);
  ASSERT_TRUE(others.save(1).committed);
  const std::string shard = run.directory() + "/step-0000000001/shard-00000-of-00001.h5";
  File(posix_disk(), shard, O_WRONLY).write_at("damage", 6, 0);  // which a reader would see
  ASSERT_EQ(run.prepare(1).phase, SavePhase::kPrepared);
  const SaveStatus status = run.commit();
  EXPECT_EQ(status.phase, SavePhase::kFailed);
  ASSERT_TRUE(status.failure);
  EXPECT_NE(status.failure->message.find("is of another model"), std::string::npos)
      << status.failure->message;
  run.discard();
  EXPECT_EQ(run.names("run"), (Names{"latest", "step-0000000001"}));
}

}  // namespace
}  // namespace sherd::checkpoint
