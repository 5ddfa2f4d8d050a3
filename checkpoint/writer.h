/// Writes one rank's share of a checkpoint while training continues: a two-phase commit, in which
/// kPrepared is a rank's vote and rank 0's rename the decision.
///
/// Every rank has a Writer. A save is, on every rank, with the same step, uuid and tensors:
///
///   writer.begin(...)          after an update; returns at once
///     ... the next forward and backward; parameters and moments don't change in them ...
///   writer.wait_copied()       before the next update: from here on they may
///     ... any number of steps; at each, ranks tell one another their status().phase ...
///   all kPrepared              rank 0: commit(global); the others wait to hear that it is
///                              kCommitted
///   rank 0 is kCommitted       every rank: finish(). Only now may anyone say "saved"
///   anyone is kFailed          every rank: discard(). Each takes away what it wrote, and the last
///                              one the temporary directory; then training continues
///
/// What ranks tell one another is the caller's business, with a deadline of its own: a Writer knows
/// no communicator. Ranks are threads, or processes on a shared file system; they meet in the
/// temporary directory only, which carries the save's uuid in its name.
///
/// Promise   The directory step-XXXXXXXXXX appears by one rename, after every byte in it has been
///           made durable, and is itself durable before the phase is kCommitted. Until then the
///           checkpoints before it are untouched. A whole checkpoint of the same step is never
///           replaced: the save fails. A damaged one, which a resume has fallen back from, is kept
///           under another name; status().warning says which.
/// Snapshot  A copier moves the pieces through the ring; writers take blocks of kBlockBytes from
///           it, checksum them and write them directly (O_DIRECT; where the file system refuses direct
///           writes: through its cache), so bytes and checksum come from the same memory. With a
///           ring that holds the slice wait_copied() waits for a copy in memory; with a smaller
///           one, for the disk to take the difference: nothing is allocated in the ring's place.
/// Finite    A NaN or infinity in the state fails the save and names tensor, kind and element: it
///           must not rotate the good checkpoints out.
/// Lock      If the output folder's lock isn't ours any longer, the commit fails before anything of
///           the folder changes.
/// Memory    The ring is the caller's; otherwise the HDF5 metadata (some KiB per dataset), 8 bytes
///           per block and 32 per piece, on rank 0 the manifest of all of them and index.h5.
/// Threads   1 + writes_in_flight while a save is on, none otherwise. Members are called by one
///           thread, the rank's own.
/// Signals   its threads block SIGXFSZ, so that a file size limit is an error; what the process does with signals is
///           left as it is.
/// Errors    A save doesn't throw: it becomes kFailed. A commit or discard that a system call holds
///           up for ever holds up finish(), discard() and ~Writer for as long.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "checkpoint/format/manifest.h"
#include "checkpoint/store/commit.h"
#include "checkpoint/store/disk.h"
#include "checkpoint/store/output_lock.h"
#include "core/tensor.h"
#include "sharding/state/state.h"

namespace sherd::checkpoint {

struct WriterOptions {
  std::string directory;  ///< of all checkpoints, "<output_dir>/checkpoints"; made if it is gone
  int rank = 0;
  int world = 1;
  Tensor ring;               ///< u8, aligned to kFileAlignment; staging_bytes() holds everything
  int writes_in_flight = 3;  ///< two write while the third checksums
  IndexBuilder build_index;  ///< rank 0
  Disk* disk = &posix_disk();
  const OutputLock* lock = nullptr;  ///< looked at before a commit; outlives the Writer
  sharding::CopyState copy{};        ///< out of the state's memory; the copier's thread calls it
};

/// A ring of this size takes the whole slice; `bytes_by_kind` are the bytes that this rank saves of
/// each kind of state. Any ring of at least kBlockBytes works.
std::int64_t staging_bytes(const std::vector<std::int64_t>& bytes_by_kind);
/// 32 random hex digits. One rank draws, all use it.
std::string make_save_uuid();

enum class SavePhase : std::uint8_t {
  kIdle,
  kWriting,
  kPrepared,  ///< this rank's shard is durable
  kCommitting,
  kCommitted,
  kFailed,
  kDiscarding,
};
std::string_view name_of(SavePhase phase);

struct SaveFailure {
  std::string message;    ///< a whole sentence
  std::string operation;  ///< these three if a system call failed: "fsync", ...
  std::string file;
  int error_number = 0;
  int exit_code = 3;       ///< of a run that ends because of it (core/error.h)
  bool lock_lost = false;  ///< another run may be writing here: nothing more may be written
};

struct SaveTimes {
  std::int64_t bytes = 0;                ///< of this rank's state
  std::chrono::nanoseconds copied{};     ///< begin to everything in the ring
  std::chrono::nanoseconds written{};    ///< begin to the shard durable
  std::chrono::nanoseconds committed{};  ///< begin to the checkpoint durable (rank 0)
  std::chrono::nanoseconds stalled{};    ///< of the caller in wait_copied()
  std::chrono::nanoseconds checking{};   ///< checksums and the search for NaNs, added over threads
  std::chrono::nanoseconds syncing{};    ///< fsync of the shard

  double mib_per_second() const;  ///< of `written`
};

struct SaveStatus {
  SavePhase phase = SavePhase::kIdle;
  std::optional<SaveFailure> failure;  ///< of the save that is on, until it is discarded
  /// What went wrong without harm: the `latest` hint, the removal of what a failed save left, a
  /// damaged checkpoint that was in the way. Stays until the next begin().
  std::string warning;
  SaveTimes times;  ///< of the save that is on, or the last one
};

class Writer {
 public:
  explicit Writer(WriterOptions options);
  ~Writer();  ///< discards a save that isn't committed
  Writer(const Writer&) = delete;
  Writer& operator=(const Writer&) = delete;

  /// Only when kIdle. The memory of `state`'s pieces stays valid and unchanged until wait_copied()
  /// has returned. All tensors of a kind have one type.
  void begin(std::int64_t step, const std::string& save_uuid, const sharding::State& state);
  /// Returns how long it waited. A save that has failed waits for nothing.
  std::chrono::nanoseconds wait_copied();
  SaveStatus status() const;
  /// Blocks until no work is left in the background: for a save that isn't asynchronous, and tests.
  SaveStatus wait();

  /// Rank 0, once every rank is kPrepared. Returns at once; ends as kCommitted or kFailed.
  void commit(std::shared_ptr<const nlohmann::json> global);
  /// Once rank 0 is kCommitted: becomes kIdle.
  void finish();
  /// Stops the save and removes its files, in the background; becomes kIdle. When kIdle: nothing.
  /// A commit that is under way ends first, and if it succeeds the checkpoint stays (kCommitted).
  /// The state's memory is still read until wait_copied() has returned.
  void discard();

 private:
  class Save;
  WriterOptions options_;
  std::unique_ptr<Save> save_;
};

}  // namespace sherd::checkpoint
