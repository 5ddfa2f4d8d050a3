/// Rows made of separate documents: the place of every piece of every document, for every epoch.
///
///   piece    a document of up to seq_length tokens; a longer one is cut into pieces of seq_length
///            and a shorter last piece. A token's target is the next token of its document. The
///            last token of a document has no target. A token that isn't trained on is no target.
///   row      pieces one after the other (packing.h), then padding, which has no targets
///   epoch    every piece once. The number of rows is the same in every epoch.
///   order    of pieces and rows: a pure function of (seed, epoch, rows per step)
///
/// The documents of an example (ExampleKind) are neighbours in one row. They fit into a row
/// together.
///
/// Pieces without a target are left out. Any thread may call. Memory: 32 bytes per piece, plus 8
/// for each of two epochs.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "engine/data/batch_rows.h"
#include "engine/data/dataset.h"
#include "engine/data/packing.h"

namespace sherd::data {

enum class Packing : std::uint8_t { kBestFit, kNone };

/// A document in a row.
struct RowDocument {
  std::int64_t first = 0, count = 0;  ///< its tokens, counted from the row's first
  std::int64_t number = 0;            ///< of all documents of the split, in the data's order
  bool is_wanted = false;             ///< of ExampleKind::kLabelled
};
inline std::int64_t documents_of_example(ExampleKind kind) {
  return kind == ExampleKind::kDocument ? 1 : 2;
}

class DocumentRows {
 public:
  /// `shuffled`: false for validation, which reads rows in a fixed order.
  struct Order {
    bool shuffled = true;
    std::uint64_t seed = 0;
    std::int64_t rows_per_step = 1;
  };
  DocumentRows(std::shared_ptr<const Dataset> dataset, Split split, Packing packing,
               const Order& order);

  std::int64_t rows_per_epoch() const { return rows_per_epoch_; }
  std::int64_t num_pieces() const { return std::ssize(pieces_); }
  std::int64_t num_tokens() const { return num_tokens_; }    ///< in pieces
  std::int64_t num_targets() const { return num_targets_; }  ///< in one epoch

  /// Number of targets in row `row`, counted over all epochs; with `ahead`, without the first ones of
  /// each piece, which nothing predicts from so far before them.
  std::int64_t targets_of(std::int64_t row, std::int64_t ahead = 0) const;
  /// The lengths of the row's pieces.
  std::vector<std::int64_t> lengths_of(std::int64_t row) const;

  /// Pieces are documents only if the data has examples of several documents.
  std::vector<RowDocument> documents_of(std::int64_t row) const;
  std::int64_t num_examples_of(std::int64_t row) const;

  /// Writes row `row` as the batch's next row.
  void write(std::int64_t row, BatchRows& rows) const;

 private:
  struct Piece {
    std::int64_t first;  ///< in the file
    std::int32_t file, count, targets;
    bool goes_on;  ///< the next token belongs to the same document
    bool is_wanted;
  };
  struct Epoch {
    std::int64_t number = -1;
    PackedRows rows;
    std::vector<std::int32_t> order;
  };
  void cut(const FilePart& document);
  std::int64_t trained_of(const Piece& piece, std::int64_t count) const;
  Epoch plan(std::int64_t number) const;
  std::shared_ptr<const Epoch> epoch(std::int64_t number) const;
  std::vector<std::int32_t> pieces_of(const PackedRows& rows, std::int64_t row) const;
  std::vector<std::int32_t> pieces_of(const Epoch& epoch, std::int64_t row) const;
  std::shared_ptr<const Epoch> epoch_of(std::int64_t row) const {
    return epoch(row / rows_per_epoch_);
  }
  void write_piece(const Piece& piece, std::int64_t token, const Batch& batch) const;

  std::shared_ptr<const Dataset> dataset_;
  Packing packing_;
  Order order_;
  std::vector<Piece> pieces_;
  std::int32_t pieces_per_item_ = 1;   ///< items are packed
  std::vector<std::int32_t> lengths_;  ///< of items
  std::int64_t rows_per_epoch_ = 0, num_tokens_ = 0, num_targets_ = 0;

  mutable std::mutex mutex_;
  mutable std::array<std::shared_ptr<const Epoch>, 2> epochs_;  ///< one even, one odd
};

}  // namespace sherd::data
