/// Finds committed checkpoints in a run's folder, and opens one.
///
///   for (std::int64_t step : committed_steps(disk, "runs/x/checkpoints")) ...   newest first
///   Checkpoint checkpoint(disk, "runs/x/checkpoints/step-0000001200");
///
/// Only names of exactly the form step-XXXXXXXXXX count; temporary directories, `latest` and other
/// entries are ignored. No path comes from a file: file names follow from the manifest's number of
/// shards, and files are opened inside the opened directory. A symbolic link in place of a step's
/// directory, or of a file in it, is refused. (`checkpoints` itself may be one: the owner may
/// choose a disk.) Files that don't belong to the checkpoint are never opened.
///
/// Threads  several threads may use a Checkpoint; it doesn't change.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "checkpoint/format/manifest.h"
#include "checkpoint/store/disk.h"

namespace sherd::checkpoint {

inline constexpr const char* kManifestName = "manifest.json";
inline constexpr const char* kIndexName = "index.h5";

/// An opened checkpoint. Its manifest is valid, and every file that it names exists, is a plain
/// file and has the stated size. Damaged bytes are found when they are read.
class Checkpoint {
 public:
  /// `path` is a checkpoint's directory. If it has the name of a step, it must be the checkpoint's
  /// own step.
  /// Errors   DataError naming the file and what is wrong with it.
  Checkpoint(Disk& disk, const std::string& path);

  /// From now on, tensors of kind "average" are its parameters, and its parameters the average.
  /// Errors   DataError if it has none
  void exchange_average();

  const std::string& path() const { return directory_.path(); }
  const Manifest& manifest() const { return manifest_; }
  int num_shards() const { return static_cast<int>(manifest_.shards.size()); }
  std::string shard_path(int shard) const;
  std::string manifest_path() const { return path() + "/" + kManifestName; }

  /// Opens a file for reading; its size is checked again.
  File open_shard(int shard) const;
  File open_index() const;
  /// Until this object ends, its run doesn't remove it (retention.h). False: it has been removed,
  /// or another checkpoint has its name. True, without a hold, if the file system has no locks. Any
  /// thread.
  bool hold() const;
  /// Before it is removed: true if nobody holds it; then nobody can until this object ends.
  bool claim() const;
  /// Entries of the directory that aren't the checkpoint's.
  std::vector<std::string> foreign_entries() const;

 private:
  File open_file(const std::string& name, std::int64_t bytes) const;

  Disk* disk_;
  File directory_;
  Manifest manifest_;
};

/// The step of a directory name, if the name has exactly a checkpoint's form.
std::optional<std::int64_t> step_of_directory(const std::string& name);

/// Steps whose directories have a checkpoint's name, newest first; they may be damaged. Empty if
/// `directory` doesn't exist.
std::vector<std::int64_t> committed_steps(Disk& disk, const std::string& directory);

struct Refusal {
  std::string path;    ///< of the checkpoint
  std::string reason;  ///< names the file
};

struct Newest {
  std::optional<Checkpoint> checkpoint;
  std::vector<Refusal> refused;  ///< newer checkpoints, newest first
};

/// The newest checkpoint that opens, among steps before `before`. A resume that finds bad bytes in
/// step 1200 asks again with `before` = 1200. If the run removes one meanwhile, it looks again.
Newest newest_checkpoint(Disk& disk, const std::string& directory, std::int64_t before = INT64_MAX);

}  // namespace sherd::checkpoint
