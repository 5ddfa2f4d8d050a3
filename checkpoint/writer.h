/// Writes one rank's share of a checkpoint while training continues. It is a two-phase commit:
/// kPrepared is a rank's vote, and rank 0's rename is the decision.
///
/// Every rank has a Writer. A save consists of these calls on every rank, with the same step, uuid
/// and tensors:
///
///   writer.begin(...)          after an update; returns at once
///     ... the next forward and backward; parameters and moments don't change in them ...
///   writer.wait_copied()       before the next update, which may change them again
///     ... any number of steps; at each, ranks tell one another their status().phase ...
///   all kPrepared              rank 0: commit(global); the others wait for its kCommitted
///   rank 0 is kCommitted       every rank: finish(). Only now may a rank report "saved"
///   anyone is kFailed          every rank: discard(). Each removes what it wrote, and the last one
///                              removes the temporary directory; then training continues
///
/// The caller exchanges the phases, with its own deadline: a Writer knows no communicator. Ranks
/// are threads, or processes on a shared file system. They share only the temporary directory,
/// whose name contains the save's uuid.
///
/// Promise   The directory step-XXXXXXXXXX appears by one rename, after every byte in it was made
///           durable. It is itself durable before the phase is kCommitted. Until then earlier
///           checkpoints are untouched. An intact checkpoint of the same step is never replaced:
///           the save fails. A damaged one that a resume has skipped is kept under another name,
///           which status().warning states.
/// Snapshot  A copier moves the pieces through the ring. Writers take blocks of kBlockBytes from
///           it, checksum them and write them directly (O_DIRECT; through the cache if the file
///           system refuses direct writes). So bytes and checksum come from the same memory. If the
///           ring holds the slice, wait_copied() waits only for a copy in memory. With a smaller
///           ring it also waits until the disk has taken the difference; no other memory is
///           allocated.
/// Finite    A NaN or infinity in the state fails the save and names tensor, kind and element. Such
///           a save must not push out the good checkpoints.
/// Lock      If this run has lost the output folder's lock, the commit fails before anything in the
///           folder changes.
/// Memory    The ring belongs to the caller. In addition: the HDF5 metadata (some KiB per dataset),
///           8 bytes per block and 32 per piece; on rank 0 the manifest of all pieces and index.h5.
/// Threads   1 + writes_in_flight during a save, none otherwise. Only one thread calls members, the
///           rank's own.
/// Signals   Its threads block SIGXFSZ, so that a file size limit is an error. The process's signal
///           handling is left unchanged.
/// Errors    A save doesn't throw: it becomes kFailed. If a system call blocks a commit or discard
///           forever, finish(), discard() and ~Writer block as long.
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
  std::string directory;  ///< of all checkpoints, "<output_dir>/checkpoints"; created if missing
  int rank = 0;
  int world = 1;
  Tensor ring;               ///< u8, aligned to kFileAlignment; staging_bytes() holds everything
  int writes_in_flight = 3;  ///< two write while the third checksums
  IndexBuilder build_index;  ///< on rank 0
  Disk* disk = &posix_disk();
  const OutputLock* lock = nullptr;  ///< checked before a commit; outlives the Writer
  sharding::CopyState copy{};        ///< from the state's memory; the copier's thread calls it
  /// Whether state at this address stays as it is until the save ends: wait_copied() doesn't wait
  /// for it. Empty: none does.
  std::function<bool(const void* address)> stays{};
  /// DataError if a checkpoint of the step to commit is another model's; a thread calls it. Empty:
  /// one whose tensors differ is.
  std::function<void(const Checkpoint&)> belongs{};
};

/// A ring of this size holds the whole slice. `bytes_by_kind` is what this rank saves of each kind
/// of state. Any ring of at least kBlockBytes works.
std::int64_t staging_bytes(const std::vector<std::int64_t>& bytes_by_kind);
/// 32 random hex digits. One rank draws them, all use them.
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
  std::string operation;  ///< if a system call failed, like the next two: "fsync", ...
  std::string file;
  int error_number = 0;
  int exit_code = 3;       ///< of a run that ends because of it (core/error.h)
  bool lock_lost = false;  ///< another run may be writing here: write nothing more
};

struct SaveTimes {
  std::int64_t bytes = 0;                ///< of this rank's state
  std::chrono::nanoseconds copied{};     ///< begin to everything in the ring that may change
  std::chrono::nanoseconds written{};    ///< begin to the shard durable
  std::chrono::nanoseconds committed{};  ///< begin to the checkpoint durable (rank 0)
  std::chrono::nanoseconds stalled{};    ///< time that the caller spent in wait_copied()
  std::chrono::nanoseconds checking{};   ///< checksums and the search for NaNs, summed over threads
  std::chrono::nanoseconds syncing{};    ///< fsync of the shard

  double mib_per_second() const;  ///< from `written`
};

struct SaveStatus {
  SavePhase phase = SavePhase::kIdle;
  std::optional<SaveFailure> failure;  ///< of the current save, until it is discarded
  /// Harmless problems: the `latest` hint, removing what a failed save left, a damaged checkpoint
  /// that was in the way. Kept until the next begin().
  std::string warning;
  SaveTimes times;  ///< of the current save, or the last one
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
  /// Waits until no state is read any more, and not longer than `most`; false if it still is. A
  /// failed save ends the wait.
  bool wait_copied(std::optional<std::chrono::milliseconds> most = {});
  SaveStatus status() const;
  /// Waits until no background work is left: for a save that isn't asynchronous, and for tests.
  SaveStatus wait();

  /// Rank 0, once every rank is kPrepared. Returns at once; ends as kCommitted or kFailed.
  void commit(std::shared_ptr<const nlohmann::json> global);
  /// Once rank 0 is kCommitted: becomes kIdle.
  void finish();
  /// Stops the save and removes its files, in the background; becomes kIdle. Does nothing when
  /// kIdle. A commit in progress ends first; if it succeeds, the checkpoint stays (kCommitted).
  /// The state's memory is still read until wait_copied() has returned.
  void discard();

 private:
  class Save;
  WriterOptions options_;
  std::unique_ptr<Save> save_;
};

}  // namespace sherd::checkpoint
