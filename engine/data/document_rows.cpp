#include "engine/data/document_rows.h"

#include <algorithm>
#include <limits>
#include <numeric>
#include <utility>

#include "core/error.h"
#include "engine/data/shuffle.h"

namespace sherd::data {
namespace {

enum class RowDraw : std::uint8_t { kPieces = 11, kRows = 12 };

}  // namespace

DocumentRows::DocumentRows(std::shared_ptr<const Dataset> dataset, Split split, Packing packing,
                           const Order& order)
    : dataset_(std::move(dataset)), packing_(packing), order_(order) {
  for (const FilePart& document : dataset_->parts(split)) cut(document);
  if (std::ssize(pieces_) >= std::numeric_limits<std::int32_t>::max()) {
    throw DataError(
        "the data have {} documents or pieces of documents; separate documents can have at most "
        "2147483646. Use data.documents: joined, or fewer texts.",
        pieces_.size());
  }
  pieces_per_item_ = static_cast<std::int32_t>(documents_of_example(dataset_->examples()));
  SHERD_CHECK(pieces_per_item_ == 1 || std::size(pieces_) == dataset_->parts(split).size(),
              "{} pieces of {} documents", pieces_.size(), dataset_->parts(split).size());
  SHERD_CHECK(std::ssize(pieces_) % pieces_per_item_ == 0, "{} pieces of examples of {}",
              pieces_.size(), pieces_per_item_);
  lengths_.resize(pieces_.size() / static_cast<std::size_t>(pieces_per_item_));
  for (std::size_t i = 0; i < pieces_.size(); ++i) {
    lengths_[i / static_cast<std::size_t>(pieces_per_item_)] += pieces_[i].count;
    num_tokens_ += pieces_[i].count;
    num_targets_ += pieces_[i].targets;
  }
  if (pieces_.empty()) return;
  rows_per_epoch_ = 1;  // until it is known
  rows_per_epoch_ = epoch(0)->rows.count();
  epochs_ = {};
}

void DocumentRows::cut(const FilePart& document) {
  const TokenFile& file = dataset_->file(document.file);
  std::vector<std::uint8_t> trained;
  for (std::int64_t begin = 0; begin < document.count; begin += dataset_->seq_length()) {
    Piece piece;
    piece.first = document.first + begin;
    piece.file = document.file;
    piece.is_wanted = document.is_wanted;
    const std::int64_t count = std::min(dataset_->seq_length(), document.count - begin);
    piece.count = static_cast<std::int32_t>(count);
    piece.goes_on = begin + count < document.count;
    const std::int64_t targets = count - (piece.goes_on ? 0 : 1);
    piece.targets = static_cast<std::int32_t>(targets);
    if (file.has_untrained()) {
      trained.resize(static_cast<std::size_t>(targets));
      file.read_trained(piece.first + 1, targets, trained.data());
      piece.targets = std::accumulate(trained.begin(), trained.end(), std::int32_t{0});
    }
    if (piece.targets > 0) pieces_.push_back(piece);
  }
}

DocumentRows::Epoch DocumentRows::plan(std::int64_t number) const {
  Epoch epoch;
  epoch.number = number;
  const auto n = static_cast<std::uint64_t>(lengths_.size());
  std::vector<std::int32_t> order(static_cast<std::size_t>(n));
  std::iota(order.begin(), order.end(), 0);
  if (order_.shuffled) {
    const Permutation shuffle(n, hash_of(order_.seed, RowDraw::kPieces, number));
    for (std::uint64_t i = 0; i < n; ++i) order[i] = static_cast<std::int32_t>(shuffle(i));
  }
  epoch.rows = packing_ == Packing::kNone ? one_each(order)
                                          : best_fit(lengths_, order, dataset_->seq_length());
  const auto num_rows = static_cast<std::size_t>(epoch.rows.count());
  epoch.order.resize(num_rows);
  std::iota(epoch.order.begin(), epoch.order.end(), 0);
  if (!order_.shuffled) return epoch;
  std::vector<std::int64_t> costs(num_rows);
  for (std::size_t row = 0; row < num_rows; ++row) {
    for (const std::int32_t piece : pieces_of(epoch.rows, static_cast<std::int64_t>(row))) {
      const std::int64_t length = pieces_[static_cast<std::size_t>(piece)].count;
      costs[row] += length * length;
    }
  }
  epoch.order = order_of_rows(costs, {order_.rows_per_step, number * epoch.rows.count(),
                                      hash_of(order_.seed, RowDraw::kRows, number)});
  return epoch;
}

// Ranks read the same epoch, and near its end the next one.
std::shared_ptr<const DocumentRows::Epoch> DocumentRows::epoch(std::int64_t number) const {
  const std::lock_guard lock(mutex_);
  std::shared_ptr<const Epoch>& kept = epochs_[static_cast<std::size_t>(number % 2)];
  if (!kept || kept->number != number) kept = std::make_shared<const Epoch>(plan(number));
  return kept;
}

std::vector<std::int32_t> DocumentRows::pieces_of(const PackedRows& rows, std::int64_t row) const {
  std::vector<std::int32_t> pieces;
  for (const std::int32_t item : rows.of(row)) {
    for (std::int32_t i = 0; i < pieces_per_item_; ++i)
      pieces.push_back(item * pieces_per_item_ + i);
  }
  return pieces;
}

std::vector<std::int32_t> DocumentRows::pieces_of(const Epoch& epoch, std::int64_t row) const {
  return pieces_of(epoch.rows, epoch.order[static_cast<std::size_t>(row % rows_per_epoch_)]);
}

std::vector<RowDocument> DocumentRows::documents_of(std::int64_t row) const {
  SHERD_CHECK(pieces_per_item_ > 1, "documents that may be cut");
  const auto epoch = epoch_of(row);
  std::vector<RowDocument> documents;
  std::int64_t token = 0;
  for (const std::int32_t number : pieces_of(*epoch, row)) {
    const Piece& piece = pieces_[static_cast<std::size_t>(number)];
    documents.push_back({token, piece.count, number, piece.is_wanted});
    token += piece.count;
  }
  return documents;
}

std::int64_t DocumentRows::num_examples_of(std::int64_t row) const {
  const auto epoch = epoch_of(row);
  return std::ssize(pieces_of(*epoch, row)) / pieces_per_item_;
}

// Of the first `count` tokens that could be targets.
std::int64_t DocumentRows::trained_of(const Piece& piece, std::int64_t count) const {
  const TokenFile& file = dataset_->file(piece.file);
  count = std::min<std::int64_t>(count, piece.count - (piece.goes_on ? 0 : 1));
  if (!file.has_untrained()) return count;
  std::vector<std::uint8_t> trained(static_cast<std::size_t>(count));
  file.read_trained(piece.first + 1, count, trained.data());
  return std::accumulate(trained.begin(), trained.end(), std::int64_t{0});
}

std::int64_t DocumentRows::targets_of(std::int64_t row, std::int64_t ahead) const {
  const auto epoch = epoch_of(row);
  std::int64_t targets = 0;
  for (const std::int32_t number : pieces_of(*epoch, row)) {
    const Piece& piece = pieces_[static_cast<std::size_t>(number)];
    targets += piece.targets - (ahead > 0 ? trained_of(piece, ahead) : 0);
  }
  return targets;
}

std::vector<std::int64_t> DocumentRows::lengths_of(std::int64_t row) const {
  const auto epoch = epoch_of(row);
  std::vector<std::int64_t> lengths;
  for (const std::int32_t piece : pieces_of(*epoch, row)) {
    lengths.push_back(pieces_[static_cast<std::size_t>(piece)].count);
  }
  return lengths;
}

void DocumentRows::write_piece(const Piece& piece, std::int64_t token, const Batch& batch) const {
  const TokenFile& file = dataset_->file(piece.file);
  std::int32_t* targets = batch.targets.as<std::int32_t>() + token;
  file.read(piece.first, piece.count, batch.inputs.as<std::int32_t>() + token);
  const std::int64_t count = piece.goes_on ? piece.count : piece.count - 1;
  file.read(piece.first + 1, count, targets);
  if (file.has_untrained()) {
    std::vector<std::uint8_t> trained(static_cast<std::size_t>(count));
    file.read_trained(piece.first + 1, count, trained.data());
    for (std::int64_t i = 0; i < count; ++i) {
      if (!trained[static_cast<std::size_t>(i)]) targets[i] = kNoTarget;
    }
  }
  if (!piece.goes_on) targets[count] = kNoTarget;
}

void DocumentRows::write(std::int64_t row, BatchRows& rows) const {
  SHERD_CHECK(rows.has_documents() && rows.seq_length() == dataset_->seq_length(),
              "documents of {} tokens in rows of {}", dataset_->seq_length(), rows.seq_length());
  std::int64_t token = rows.begin_row();
  const auto epoch = epoch_of(row);
  for (const std::int32_t number : pieces_of(*epoch, row)) {
    const Piece& piece = pieces_[static_cast<std::size_t>(number)];
    rows.add_document(token, piece.count);
    write_piece(piece, token, rows.batch());
    token += piece.count;
  }
}

}  // namespace sherd::data
