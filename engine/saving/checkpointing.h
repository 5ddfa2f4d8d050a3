/// What loading and saving share on one rank: the options, the exchange among all ranks, and the
/// memory that files are read into. `resume` (resuming.h) fills a training from a checkpoint,
/// `Saver` (saver.h) writes one.
#pragma once

#include <array>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "checkpoint/store/committed.h"
#include "checkpoint/store/output_lock.h"
#include "checkpoint/store/retention.h"
#include "engine/data/skips.h"
#include "engine/saving/run_state.h"
#include "engine/saving/saved_counters.h"
#include "sharding/mesh/rank.h"

namespace sherd::engine {

struct CheckpointOptions {
  std::string directory;      ///< "<output_dir>/checkpoints"
  bool saves = false;         ///< at an interval, or on a signal
  std::int64_t interval = 0;  ///< in steps; 0: none
  bool async = true;
  std::int64_t max_failed_saves = 3;  ///< in a row; 0: any number
  checkpoint::RetentionPolicy keep{};
  std::string resume = "auto";
  std::string init_from;  ///< with an adapter: its base model
  std::string adapter;    ///< PEFT folder of the initial adapter; empty: a new one
  std::int64_t max_steps = 0;
  std::string best_by{};  ///< name of the validation set whose loss is the run's; empty: the first
  std::uint64_t validation_data = 0;  ///< fingerprint of what that loss is over; 0: unknown
  /// What every checkpoint records about its run, and a resume compares (resume_check.h).
  std::shared_ptr<const nlohmann::json> fingerprint;
  std::string recipe;  ///< the resolved recipe, YAML
  std::string folder;  ///< base of its relative paths
  /// Not empty: the skipped data, instead of the loaded checkpoint's.
  std::vector<data::Skip> new_skips{};
  std::vector<char32_t> vocabulary{};  ///< of character data: what the ids mean
  checkpoint::Disk* disk = &checkpoint::posix_disk();
  const checkpoint::OutputLock* lock = nullptr;  ///< of the folder that `directory` is in
};

/// What ranks exchange when they load or save.
struct CheckpointWord {
  double loaded = 0.0;                ///< 1: this rank found no damaged bytes
  double step = 0.0;                  ///< of the loaded checkpoint
  double phase = 0.0;                 ///< of its writer: checkpoint::SavePhase
  std::array<double, 4> save_uuid{};  ///< of a save that begins, drawn by rank 0: 32 bits in each
};

/// The buffer that a checkpoint's blocks are read into before the first step.
BufferSpec checkpoint_reading_buffer();
/// What Checkpointing and Saver acquire: the exchange, a block for reading before the first step,
/// and, if anything is saved, the staging ring.
std::vector<BufferSpec> checkpoint_buffers(const TrainingOptions& options, bool saves,
                                           const sharding::ShardingPlan& plan);

/// The instruction set of this rank's matmuls on a CPU; else "". Checkpoints record it.
std::string isa_of(const sharding::Rank& rank);

/// Receives a sentence for the user. Any rank may call it, on its own thread.
using OnMessage = std::function<void(const std::string&)>;

class Checkpointing {
 public:
  /// All arguments are kept by reference and must outlive this; `on_message` may be empty.
  Checkpointing(const TrainingOptions& options, const CheckpointOptions& checkpoints,
                ShardedModel& model, TrainingStep& training_step, OnMessage on_message);

  const TrainingOptions& options() const { return options_; }
  const CheckpointOptions& checkpoints() const { return checkpoints_; }
  /// What validation losses of this run are measured on.
  ValidatedOn validated_on() const {
    return {checkpoints_.best_by, options_.model.seq_length, checkpoints_.validation_data};
  }
  ShardedModel& model() const { return model_; }
  TrainingStep& training_step() const { return training_step_; }
  const sharding::Rank& rank() const { return model_.rank(); }
  checkpoint::Disk& disk() const { return *checkpoints_.disk; }

  /// Every rank's CheckpointWord, in rank order. A collective.
  std::vector<CheckpointWord> exchange(const std::string& label, const CheckpointWord& own) {
    return words_.all_gather(label, own);
  }
  /// Exchanges words until `is_over` is true on all ranks; it may wait for at most `most`. Disks and
  /// commands of hooks may take longer than peers wait for a silent rank. A collective.
  void wait_together(const std::string& label,
                     const std::function<bool(std::chrono::milliseconds most)>& is_over);
  /// As `copy`, also if all state is in the host's memory, and joins `wait_together` with this label
  /// from time to time: ranks may have different amounts to read.
  sharding::CopyState telling_copy(const std::string& label);
  /// Buffer for a block of a file, in host memory; before the first step.
  const Tensor& reading() const { return reading_.tensor(); }
  /// Copies state from or to separate device memory, or its home on disk. Empty if all state is in
  /// the host's memory.
  const sharding::CopyState& copy() const { return copy_; }

  /// Reports a sentence that is the same on all ranks, once, from rank 0.
  void say(const std::string& text) const {
    if (rank().rank == 0) say_here(text);
  }
  /// Reports a sentence from this rank.
  void say_here(const std::string& text) const {
    if (on_message_) on_message_(text);
  }

 private:
  const TrainingOptions& options_;
  const CheckpointOptions& checkpoints_;
  ShardedModel& model_;
  TrainingStep& training_step_;
  OnMessage on_message_;
  sharding::Agreement<CheckpointWord> words_;
  Buffer reading_;
  std::unique_ptr<Stream> copies_;  // of state; null if device memory isn't separate
  sharding::CopyState copy_;
};

}  // namespace sherd::engine
