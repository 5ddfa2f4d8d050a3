#include "checkpoint/store/retention.h"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <set>
#include <utility>

#include "checkpoint/store/committed.h"
#include "checkpoint/store/step_directory.h"
#include "core/error.h"
#include "core/thread.h"

namespace sherd::checkpoint {
namespace {

// All of these get their checkpoints newest first, and add the steps that stay.

// Of equal values the newer one is better: it comes first, and the sort keeps the order.
void keep_best(int count, const std::vector<GoodCheckpoint>& checkpoints,
               std::set<std::int64_t>& kept) {
  std::map<std::string, std::vector<GoodCheckpoint>> groups;
  for (const GoodCheckpoint& checkpoint : checkpoints) {
    if (!checkpoint.value || std::isnan(*checkpoint.value)) continue;
    groups[checkpoint.measured_as].push_back(checkpoint);
  }
  for (auto& [measured_as, ranked] : groups) {
    std::stable_sort(ranked.begin(), ranked.end(),
                     [](const auto& a, const auto& b) { return *a.value < *b.value; });
    ranked.resize(std::min(ranked.size(), static_cast<std::size_t>(count)));
    for (const GoodCheckpoint& checkpoint : ranked) kept.insert(checkpoint.step);
  }
}

// The next one will be old enough later. Without it, each would be removed before that.
void keep_behind(std::int64_t distance, const std::vector<GoodCheckpoint>& checkpoints,
                 std::set<std::int64_t>& kept) {
  if (distance == 0 || checkpoints.empty()) return;
  const std::int64_t most = checkpoints.front().step - distance;
  const auto behind = std::ranges::find_if(
      checkpoints, [most](const GoodCheckpoint& checkpoint) { return checkpoint.step <= most; });
  if (behind != checkpoints.end()) kept.insert(behind->step);
  kept.insert(std::prev(behind)->step);
}

}  // namespace

std::vector<std::int64_t> steps_to_remove(const RetentionPolicy& policy,
                                          std::vector<GoodCheckpoint> checkpoints) {
  SHERD_CHECK(policy.keep_last >= 1 && policy.keep_every >= 0 && policy.keep_best >= 0 &&
              policy.keep_behind >= 0);
  std::sort(checkpoints.begin(), checkpoints.end(),
            [](const auto& a, const auto& b) { return a.step > b.step; });
  std::set<std::int64_t> kept;
  for (std::size_t i = 0; i < checkpoints.size(); ++i) {
    const std::int64_t step = checkpoints[i].step;
    const bool is_last = i < static_cast<std::size_t>(policy.keep_last);
    if (is_last || (policy.keep_every > 0 && step % policy.keep_every == 0)) kept.insert(step);
  }
  keep_best(policy.keep_best, checkpoints, kept);
  keep_behind(policy.keep_behind, checkpoints, kept);

  std::vector<std::int64_t> removed;
  for (const GoodCheckpoint& checkpoint : checkpoints) {
    if (!kept.contains(checkpoint.step)) removed.push_back(checkpoint.step);
  }
  std::reverse(removed.begin(), removed.end());
  return removed;
}

Retention::Retention(Disk& disk, std::string directory, RetentionPolicy policy, ValueOf value_of,
                     VerifyDepth depth, RetentionGuards guards)
    : disk_(disk),
      directory_(std::move(directory)),
      policy_(policy),
      value_of_(std::move(value_of)),
      depth_(depth),
      guards_(std::move(guards)),
      thread_(start_thread("that removes checkpoints", [this] { run(); })) {}

Retention::~Retention() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

void Retention::apply() {
  const std::lock_guard lock(mutex_);
  wanted_ = true;
  changed_.notify_all();
}

RetentionReport Retention::take_report() {
  const std::lock_guard lock(mutex_);
  return std::exchange(report_, {});
}

RetentionReport Retention::finish() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return !wanted_ && !busy_; });
  return std::exchange(report_, {});
}

void Retention::run() {
  std::unique_lock lock(mutex_);
  for (;;) {
    changed_.wait(lock, [&] { return wanted_ || stopping_; });
    if (stopping_) return;
    wanted_ = false;
    busy_ = true;
    lock.unlock();
    try {
      round();
    } catch (const std::exception& error) {
      const std::lock_guard report_lock(mutex_);
      report_.problems.emplace_back(error.what());
    }
    lock.lock();
    busy_ = false;
    changed_.notify_all();
  }
}

void Retention::round() {
  std::vector<GoodCheckpoint> good;
  for (const std::int64_t step : committed_steps(disk_, directory_)) {
    if (const std::optional<GoodCheckpoint> found = examine(step)) good.push_back(*found);
  }
  for (const std::int64_t step : steps_to_remove(policy_, std::move(good))) {
    {
      const std::lock_guard lock(mutex_);
      if (stopping_) return;
    }
    remove(step);
  }
}

/// Nothing if the checkpoint isn't good.
std::optional<GoodCheckpoint> Retention::examine(std::int64_t step) {
  const std::string path = directory_ + "/" + step_directory_name(step);
  std::vector<std::string> problems;
  try {
    const Checkpoint checkpoint(disk_, path);
    const std::string& uuid = checkpoint.manifest().save_uuid;
    if (guards_.belongs) guards_.belongs(checkpoint);
    if (!verified_.contains(uuid)) {
      problems = verify(checkpoint, depth_).problems;
      verified_[uuid] = problems.empty();
    }
    if (verified_[uuid]) {
      GoodCheckpoint good;
      if (value_of_) good = value_of_(checkpoint.manifest());
      good.step = step;
      return good;
    }
  } catch (const Error& error) {
    problems.emplace_back(error.what());
  }
  const std::lock_guard lock(mutex_);
  report_.problems.insert(report_.problems.end(), problems.begin(), problems.end());
  return {};
}

void Retention::remove(std::int64_t step) {
  try {
    if (guards_.lock) guards_.lock->check();
    const Checkpoint checkpoint(disk_, directory_ + "/" + step_directory_name(step));
    if (guards_.may_go && !guards_.may_go(checkpoint)) return;
    if (!checkpoint.claim()) return;  // somebody reads it; it goes after another commit
    remove_checkpoint(disk_, directory_, step, checkpoint.manifest().save_uuid);
    const std::lock_guard lock(mutex_);
    report_.removed.push_back(step);
  } catch (const Error& error) {
    const std::lock_guard lock(mutex_);
    report_.problems.emplace_back(error.what());
  }
}

}  // namespace sherd::checkpoint
