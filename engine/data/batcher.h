/// Which tokens every rank sees at every step: a pure function, so a run resumes from one integer
/// and the order of the data doesn't depend on the number of ranks.
///
///   window    seq_length + 1 tokens inside one part (dataset.h: of a file, or of the short files
///             joined): S inputs, and targets shifted by one
///   epoch     every window once. A part of n tokens, q = (n - 1) / S, gives w = max(q - 1, 1)
///             windows, the i-th at offset + i * S. Each (seed, epoch, part) draws its own
///             offset from [0, n - 1 - w * S], so every token can be reached.
///   order     sample s is window permutation(seed, epoch)[s mod W] of epoch s / W, of W windows
///   end       with num_epochs E, samples are 0 .. E * W - 1. If they don't fill the last step,
///             its remaining rows are padding without targets
///   documents  if the dataset keeps documents separate, a row of packed documents
///             (document_rows.h) takes the place of a window in epochs and batches
///   row       row i of a micro-batch is row first_row + i of the global batch. The global batch is
///             divided into contiguous parts: by replica, then by micro-step, then by rank:
///             first_row = ((replica * num_micro_steps + micro_step) * ranks of a replica + rank in it)
///                         * micro_batch_size;  sample = step * global_batch_size + row
///
/// Immutable; any thread may call.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "engine/data/batch.h"
#include "engine/data/dataset.h"
#include "engine/data/document_rows.h"

namespace sherd::data {

struct BatchShape {
  std::int64_t seq_length = 0;
  std::int64_t micro_batch_size = 0;
  std::int64_t num_micro_steps = 1;
  int world = 1;
  int num_replicas = 1;  ///< each has a contiguous part of the batch
  std::uint64_t seed = 0;
  Packing packing = Packing::kBestFit;  ///< of separate documents
  std::int64_t num_epochs = 0;          ///< samples end after these epochs; 0: they never end

  std::int64_t global_batch_size() const { return micro_batch_size * num_micro_steps * world; }
  std::int64_t tokens_per_step() const { return global_batch_size() * seq_length; }
  /// The first row of the global batch that belongs to `rank` in this micro-step.
  std::int64_t first_row(std::int64_t micro_step, int rank) const {
    const int of_replica = world / num_replicas;
    const std::int64_t before = rank / of_replica * num_micro_steps + micro_step;
    return (before * of_replica + rank % of_replica) * micro_batch_size;
  }
};

class Batcher {
 public:
  Batcher(std::shared_ptr<const Dataset> dataset, BatchShape shape);

  const BatchShape& shape() const { return shape_; }
  const Dataset& dataset() const { return *dataset_; }

  /// Shapes   batch.h; document tensors only if documents are separate
  /// Rows     without a sample hold arbitrary tokens and no targets
  /// Errors   DataError from reading (TokenFile::read)
  void fill(std::int64_t step, std::int64_t micro_step, int rank, const Batch& batch) const;

  /// Tokens of a step, over all ranks and micro-steps, that have a target.
  std::int64_t num_targets(std::int64_t step) const;

  /// Windows in one epoch.
  std::int64_t num_windows() const { return train_.num_windows; }
  /// Steps in num_epochs; the last may have fewer samples. 0 without num_epochs.
  std::int64_t num_steps() const;
  /// Samples of the first `num_steps` steps.
  std::int64_t num_samples(std::int64_t num_steps) const;

  /// The whole validation split in order: all whole windows from the start of each part, stride
  /// seq_length. The same for every seed. Tokens after a part's last whole window aren't evaluated;
  /// there are fewer than seq_length of them.
  std::int64_t num_validation_windows() const { return validation_.num_windows; }
  /// Writes windows [first_window, first_window + count) as the first rows of the batch. The other
  /// rows hold arbitrary tokens and no targets.
  void fill_validation(std::int64_t first_window, std::int64_t count, const Batch& batch) const;
  /// Tokens of these windows that have a target.
  std::int64_t num_validation_targets(std::int64_t first_window, std::int64_t count) const;
  /// Windows that may start at any token of the validation split, in batches of `batch_size`, as in
  /// nanoGPT's estimate. Window i is drawn by (seed, i / batch_size, i % batch_size), so it doesn't
  /// depend on the rank or on the number of ranks. Not for separate documents.
  /// Shapes   as fill_validation
  void fill_validation_sample(std::int64_t batch_size, std::int64_t first, std::int64_t count,
                              const Batch& batch) const;

  /// Text for users about separate documents: how many there are, in how many rows, how full the
  /// rows are, and the fraction of tokens with a target. "" if documents aren't separate.
  std::string summary() const;
  /// Rows of separate documents, for the lengths of a row's pieces.
  const DocumentRows& training_rows() const { return *train_rows_; }

  /// A window's place: its first token in a file.
  struct Place {
    int file = 0;
    std::int64_t first = 0;
  };
  Place training_place(std::int64_t sample) const;
  Place validation_place(std::int64_t window) const;

 private:
  struct Run {
    FilePart part;
    std::int64_t index;         ///< of the part in its split
    std::int64_t first_window;  ///< windows of the runs before it
    std::int64_t num_windows;
    std::int64_t first_start;  ///< possible window starts of the runs before it
  };
  struct Windows {
    std::vector<Run> runs;
    std::int64_t num_windows = 0;
    std::int64_t num_starts = 0;
    /// The last run whose `first` (first_window or first_start) is at most `place`.
    const Run& run_at(std::int64_t Run::*first, std::int64_t place) const;
  };
  Windows windows_of(Split split) const;
  void write_row(Place place, std::int64_t row, const Batch& batch) const;
  void clear_rows_from(std::int64_t row, const Batch& batch) const;

  std::shared_ptr<const Dataset> dataset_;
  BatchShape shape_;
  Windows train_;
  Windows validation_;
  std::shared_ptr<const DocumentRows> train_rows_, validation_rows_;  ///< of separate documents
};

}  // namespace sherd::data
