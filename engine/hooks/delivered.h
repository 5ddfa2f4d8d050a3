/// Which checkpoints of a run have been through on_save: `<output_dir>/on_save.json`.
///
///   {"delivered":[{"step":400,"save_uuid":"7f0c..."}]}
///
/// A checkpoint counts by its save's uuid, since a step may be set aside and saved again. The file
/// is written after the command has succeeded. So a run that dies in between runs the command for
/// that checkpoint again, and none is left out.
///
/// Threads   any
#pragma once

#include <cstdint>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include "checkpoint/store/committed.h"
#include "checkpoint/store/output_lock.h"

namespace sherd::engine {

inline constexpr const char* kDeliveredName = "on_save.json";

class Delivered {
 public:
  /// `lock` is checked before each write; it may be null.
  Delivered(checkpoint::Disk& disk, std::string output_dir, const checkpoint::OutputLock* lock);

  /// Reads the file of an earlier start; a damaged one counts as none.
  void load();
  bool has(const std::string& save_uuid) const;
  /// Adds it durably, and forgets checkpoints that are gone.
  /// Errors   DataError: the file can't be written; LockLost.
  void add(std::int64_t step, const std::string& save_uuid);
  /// Steps of checkpoints that haven't been delivered, oldest first. Damaged ones are left out.
  std::vector<std::int64_t> missing() const;

 private:
  struct Entry {
    std::int64_t step = 0;
    std::string save_uuid;
    auto operator<=>(const Entry&) const = default;
  };

  checkpoint::Disk& disk_;
  const std::string output_dir_;
  const checkpoint::OutputLock* lock_;
  mutable std::mutex mutex_;
  std::set<Entry> entries_;
};

}  // namespace sherd::engine
