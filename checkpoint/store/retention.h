/// Which checkpoints are kept, and the thread that removes the others.
///
/// Of the good checkpoints, these are kept:
///   keep_last    the newest ones
///   keep_every   those whose step is a multiple of it; 0: none for that reason
///   keep_best    those with the lowest values (e.g. validation loss); 0: none for that reason.
///                Values that were measured on different things aren't compared: each group of
///                equal `measured_as` keeps its best
///   keep_behind  the newest one that is at least so many steps older than the newest of all, and
///                the next one, which will be that later; 0: none for that reason
///
/// Only verified checkpoints count. Each is verified once, by reading all of it, so a damaged one
/// never pushes a good one out. A damaged one isn't removed: people may want to look at it. The
/// newest good one is always kept. Checkpoints that aren't this run's (`RetentionGuards::belongs`)
/// aren't even read.
///
/// A checkpoint that a process reads (Checkpoint::hold) stays until the first commit after that. So
/// does one that `RetentionGuards::may_go` keeps.
///
/// Removal can take long, so it has its own thread. A crash in the middle leaves whole checkpoints
/// and `.gone-` directories, which remove_leftovers() removes. Rank 0 only.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "checkpoint/format/manifest.h"
#include "checkpoint/store/disk.h"
#include "checkpoint/store/output_lock.h"
#include "checkpoint/store/verify.h"

namespace sherd::checkpoint {

struct RetentionPolicy {
  int keep_last = 2;  ///< at least 1
  std::int64_t keep_every = 0;
  int keep_best = 0;
  std::int64_t keep_behind = 0;
};

struct GoodCheckpoint {
  std::int64_t step = 0;
  std::optional<double> value;  ///< lower is better; a NaN counts as no value
  std::string measured_as{};    ///< only values with the same text are compared
};

/// Ascending.
std::vector<std::int64_t> steps_to_remove(const RetentionPolicy& policy,
                                          std::vector<GoodCheckpoint> checkpoints);

struct RetentionReport {
  std::vector<std::int64_t> removed;
  std::vector<std::string> problems;  ///< sentences: damaged checkpoints, removals that failed
};

/// A checkpoint's value and what it was measured on, from what the engine put in its manifest.
using ValueOf = std::function<GoodCheckpoint(const Manifest&)>;

/// Checks before a checkpoint is read or removed; the first two throw.
struct RetentionGuards {
  /// DataError if the checkpoint belongs to another model: reading it could take any time.
  std::function<void(const Checkpoint&)> belongs{};
  const OutputLock* lock = nullptr;  ///< checked before each removal; outlives the Retention
  /// False: the checkpoint stays for now, and counts as one to remove after the next commit. Called
  /// on the thread that removes.
  std::function<bool(const Checkpoint&)> may_go{};
};

class Retention {
 public:
  Retention(Disk& disk, std::string directory, RetentionPolicy policy, ValueOf value_of = {},
            VerifyDepth depth = VerifyDepth::kDeep, RetentionGuards guards = {});
  ~Retention();  ///< ends the removal in progress
  Retention(const Retention&) = delete;
  Retention& operator=(const Retention&) = delete;

  void apply();  ///< after a commit; returns at once
  /// What happened since the last call; `take_report` doesn't wait, `finish` does.
  RetentionReport take_report();
  RetentionReport finish();

 private:
  void run();
  void round();
  std::optional<GoodCheckpoint> examine(std::int64_t step);
  void remove(std::int64_t step);

  Disk& disk_;
  const std::string directory_;
  const RetentionPolicy policy_;
  const ValueOf value_of_;
  const VerifyDepth depth_;
  const RetentionGuards guards_;
  /// What is known about each save; by uuid, since a step may be set aside and saved again.
  std::map<std::string, bool> verified_;

  std::mutex mutex_;
  std::condition_variable changed_;
  bool wanted_ = false;
  bool busy_ = false;
  bool stopping_ = false;
  RetentionReport report_;
  std::thread thread_;
};

}  // namespace sherd::checkpoint
