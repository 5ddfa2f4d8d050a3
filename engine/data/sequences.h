/// One split of a dataset as sequences of seq_length tokens, in a fixed order.
///
///   window    seq_length + 1 tokens inside one part (dataset.h: of a file, or of the short files
///             joined): S inputs, and targets shifted by one
///   training  an epoch is every window once. A part of n tokens, q = (n - 1) / S, gives
///             w = max(q - 1, 1) windows, the i-th at offset + i * S. Each (seed, epoch, part)
///             draws its own offset from [0, n - 1 - w * S], so every token can be reached.
///             Sequence s is window permutation(seed, epoch)[s mod W] of epoch s / W, of W windows.
///   validation  all whole windows from the start of each part, in order, the same for every seed.
///             Tokens after a part's last whole window aren't evaluated; there are fewer than S.
///   documents  if the dataset keeps documents separate, a row of packed documents
///             (document_rows.h) takes the place of a window
///
/// Immutable; any thread may call.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "engine/data/batch_rows.h"
#include "engine/data/dataset.h"
#include "engine/data/document_rows.h"

namespace sherd::data {

class Sequences {
 public:
  struct Order {
    Packing packing = Packing::kBestFit;
    std::uint64_t seed = 0;
    std::int64_t rows_per_step = 1;
  };
  Sequences(std::shared_ptr<const Dataset> dataset, Split split, const Order& order);

  const Dataset& dataset() const { return *dataset_; }
  /// In one epoch of training, or in the validation split.
  std::int64_t count() const { return count_; }

  /// Writes sequence `number` as the next row. Training sequences count on over epochs.
  /// Errors   DataError from reading (TokenFile::read)
  void write(std::int64_t number, BatchRows& rows) const;
  std::int64_t num_targets(std::int64_t number, std::int64_t ahead = 0) const;

  /// Windows that may start at any token of a part; not of separate documents.
  std::int64_t num_starts() const { return num_starts_; }
  void write_start(std::int64_t start, BatchRows& rows) const;

  /// Of a sequence, if documents are separate; else 1.
  std::int64_t num_examples(std::int64_t number) const;

  /// Null unless documents are separate.
  const DocumentRows* document_rows() const { return document_rows_.get(); }

  /// A window's place: its first token in a file.
  struct Place {
    int file = 0;
    std::int64_t first = 0;
  };
  Place place(std::int64_t number) const;

 private:
  struct Run {
    FilePart part;
    std::int64_t index;         ///< of the part in its split
    std::int64_t first_window;  ///< windows of the runs before it
    std::int64_t num_windows;
    std::int64_t first_start;  ///< possible window starts of the runs before it
  };
  void find_windows();
  /// The last run whose `first` (first_window or first_start) is at most `place`.
  const Run& run_at(std::int64_t Run::*first, std::int64_t place) const;
  void write_window(Place place, BatchRows& rows) const;

  std::shared_ptr<const Dataset> dataset_;
  Split split_;
  Order order_;
  std::vector<Run> runs_;
  std::int64_t count_ = 0, num_starts_ = 0;
  std::shared_ptr<const DocumentRows> document_rows_;
};

}  // namespace sherd::data
