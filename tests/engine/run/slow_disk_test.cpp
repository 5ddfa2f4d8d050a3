// A save on a disk that is slower than ranks wait for one another.
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <map>
#include <mutex>
#include <set>
#include <thread>

#include "checkpoint/store/committed.h"
#include "engine/recipe/recipe.h"
#include "engine/run/run.h"
#include "tests/checkpoint/support/hooked_disk.h"
#include "tests/support/runs/small_run.h"

namespace sherd::testing {
namespace {

// The first write of rank 1's shard takes 8 s.
class SlowShard final : public test::HookedDisk {
 public:
  SlowShard() : HookedDisk({}) {}

  int open(int directory, const std::string& path, int flags, mode_t mode) override {
    const int fd = HookedDisk::open(directory, path, flags, mode);
    if (path.find("shard-00001-") != std::string::npos) {
      const std::lock_guard lock(mutex_);
      slow_.insert(fd);
    }
    return fd;
  }
  ssize_t pwrite(int fd, const void* from, std::size_t bytes, std::int64_t offset) override {
    if (is_slow(fd) && !waited_.exchange(true)) {
      std::this_thread::sleep_for(std::chrono::seconds(8));
    }
    return checkpoint::posix_disk().pwrite(fd, from, bytes, offset);
  }
  bool has_waited() const { return waited_; }

 private:
  bool is_slow(int fd) {
    const std::lock_guard lock(mutex_);
    return slow_.contains(fd);
  }

  std::mutex mutex_;
  std::set<int> slow_;
  std::atomic<bool> waited_ = false;
};

engine::ResolvedRecipe larger_run(const test::TempFolder& folder, const std::string& staging,
                                  int steps) {
  const TrainingRun run{.stage = 1,
                        .world = 2,
                        .precision = "",
                        .optimizer = "adamw",
                        .accumulation = "gradient_accumulation_steps: 1",
                        .checkpoint = "keep_last: 2" + staging};
  std::string text = recipe_text(folder, "run", run);
  const auto replace = [&text](const std::string& from, const std::string& to) {
    text.replace(text.find(from), from.size(), to);
  };
  replace("hidden_size: 24", "hidden_size: 192");  // 11 MB of state
  replace("num_threads: 1", "num_threads: 1, peer_timeout: 4");
  replace(fmt::format("max_steps: {}", kSteps), fmt::format("max_steps: {}", steps));
  engine::RecipeRequest request;
  request.path = "slow.yaml";
  request.text = text;
  return engine::resolve_recipe(request);
}

// The update waits until the state has been copied, and 4 MiB are less than a rank saves.
TEST(SlowDisk, OfOneRankEndsNoRunWhoseStagingIsSmall) {
  const test::TempFolder folder;
  write_data(folder);
  const engine::ResolvedRecipe recipe = larger_run(folder, ", staging_mib: 4", kSteps);
  SlowShard disk;
  engine::train(recipe, engine::choose_machine(recipe.values), disk);
  EXPECT_TRUE(disk.has_waited());
  EXPECT_EQ(checkpoint::committed_steps(disk, folder.file("run/checkpoints")),
            (std::vector<std::int64_t>{kSteps, kInterval}));
}

// Reads of shards take two seconds each in the thread that reads one first, for six seconds.
class SlowReads final : public test::HookedDisk {
 public:
  SlowReads() : HookedDisk({}) {}

  int open(int directory, const std::string& path, int flags, mode_t mode) override {
    const int fd = HookedDisk::open(directory, path, flags, mode);
    const std::lock_guard lock(mutex_);
    is_shard_[fd] = path.find("shard-") != std::string::npos;
    return fd;
  }
  ssize_t pread(int fd, void* to, std::size_t bytes, std::int64_t offset) override {
    if (is_slow(fd)) std::this_thread::sleep_for(std::chrono::seconds(2));
    return checkpoint::posix_disk().pread(fd, to, bytes, offset);
  }
  int left() const { return left_; }

 private:
  bool is_slow(int fd) {
    const std::lock_guard lock(mutex_);
    if (!is_shard_[fd] || left_ == 0) return false;
    if (slow_ == std::thread::id()) slow_ = std::this_thread::get_id();
    if (slow_ != std::this_thread::get_id()) return false;
    --left_;
    return true;
  }

  std::mutex mutex_;
  std::map<int, bool> is_shard_;
  std::thread::id slow_;
  int left_ = 3;
};

TEST(SlowDisk, OfOneRankEndsNoResume) {
  const test::TempFolder folder;
  write_data(folder);
  const auto train = [&](int steps, checkpoint::Disk& disk) {
    const engine::ResolvedRecipe recipe = larger_run(folder, "", steps);
    engine::train(recipe, engine::choose_machine(recipe.values), disk);
  };
  train(kSteps, checkpoint::posix_disk());
  SlowReads disk;
  train(kSteps + 1, disk);
  EXPECT_EQ(disk.left(), 0);
  EXPECT_EQ(checkpoint::committed_steps(disk, folder.file("run/checkpoints")),
            (std::vector<std::int64_t>{kSteps + 1, kSteps}));
}

}  // namespace
}  // namespace sherd::testing
