/// The last step of a save, on rank 0: one rename turns many shards into one checkpoint.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "checkpoint/format/manifest.h"
#include "checkpoint/store/committed.h"
#include "checkpoint/store/disk.h"
#include "checkpoint/store/output_lock.h"
#include "sharding/state/state.h"

namespace sherd::checkpoint {

/// The bytes of index.h5 for a manifest whose shards are complete.
using IndexBuilder = std::function<std::string(const Manifest&)>;

struct CommitPlan {
  std::string directory;  ///< of all checkpoints
  std::int64_t step = 0;
  std::string save_uuid;
  int world = 1;
  const std::vector<sharding::StateTensor>* tensors = nullptr;
  std::shared_ptr<const nlohmann::json> global;
  const IndexBuilder* build_index = nullptr;
  const OutputLock* lock = nullptr;  ///< checked before names in the folder change
  /// As WriterOptions::belongs.
  std::function<void(const Checkpoint&)> belongs{};
};

/// What rank `rank` of `world` writes for rank 0 about its shard, in the temporary directory.
std::string part_name(int rank, int world);

class Commit {
 public:
  Commit(Disk& disk, CommitPlan plan);

  /// Does everything up to and including the durable name. A damaged checkpoint of this step, which
  /// a resume has skipped, is first set aside: it keeps its bytes and loses its name. An intact
  /// one, or one of another model, stays, and run() fails.
  /// Errors   DiskError, DataError, LockLost.
  void run();
  /// After run(): a sentence that says where a damaged checkpoint went, or "".
  const std::string& note() const { return note_; }
  /// After run(): points people to the checkpoint. Errors: DiskError, harmless.
  void hint() const;
  /// After run() has thrown: removes the temporary directory with all shards in it. A checkpoint
  /// that had its name, but not durably, loses the name first. Errors: DiskError;
  /// remove_leftovers() removes what is left.
  void undo();

 private:
  std::vector<ShardInfo> take_parts();
  void check_lock() const;
  std::string write_files();
  void rename_into_place(const std::string& manifest_text);
  void make_way();
  bool is_ours(const Checkpoint& there) const;

  Disk& disk_;
  CommitPlan plan_;
  std::string temporary_;
  std::string final_;
  std::string note_;
  bool renamed_ = false;
};

}  // namespace sherd::checkpoint
