// Batcher: the examples of several documents in rows.
#include <algorithm>

#include "core/error.h"
#include "engine/data/batcher.h"

namespace sherd::data {

// The sources, then the validation sets.
const Sequences& Batcher::split(std::size_t index) const {
  return index < training_.size() ? training_[index] : validation_[index - training_.size()];
}

std::vector<RowDocument> Batcher::numbered(std::size_t index, std::int64_t row) const {
  std::int64_t before = 0;
  for (std::size_t i = 0; i < index; ++i) before += split(i).document_rows()->num_pieces();
  std::vector<RowDocument> documents = split(index).document_rows()->documents_of(row);
  for (RowDocument& document : documents) document.number += before;
  return documents;
}

std::int64_t Batcher::num_examples(std::int64_t step) const {
  std::int64_t examples = 0;
  for (std::int64_t sample = step * shape_.global_batch_size(); sample < end_of(step); ++sample) {
    const Mixture::Place place = place_of(sample);
    examples += training(place.source).num_examples(place.number);
  }
  return examples;
}

std::int64_t Batcher::num_validation_examples(std::int64_t first_window, std::int64_t count,
                                              int set) const {
  std::int64_t examples = 0;
  for (std::int64_t window = first_window; window < first_window + count; ++window) {
    examples += validation(set, first_window).num_examples(window);
  }
  return examples;
}

std::vector<RowDocument> Batcher::documents_of_row(std::int64_t step, std::int64_t row) const {
  const std::int64_t sample = step * shape_.global_batch_size() + row;
  if (sample >= end_of(step)) return {};
  const Mixture::Place place = place_of(sample);
  return numbered(static_cast<std::size_t>(place.source), place.number);
}

std::vector<RowDocument> Batcher::documents_of_window(std::int64_t window, int set) const {
  return numbered(training_.size() + static_cast<std::size_t>(set), window);
}

std::int64_t Batcher::num_documents() const {
  std::int64_t documents = 0;
  for (std::size_t i = 0; i < training_.size() + validation_.size(); ++i) {
    documents += split(i).document_rows()->num_pieces();
  }
  return documents;
}

std::int64_t Batcher::num_example_rows() const {
  std::int64_t rows = 0;
  for (std::size_t i = 0; i < training_.size() + validation_.size(); ++i) rows += split(i).count();
  return rows;
}

// The split, and the row in its first epoch.
std::pair<std::size_t, std::int64_t> Batcher::place_of_example_row(std::int64_t row) const {
  SHERD_CHECK(row >= 0 && row < num_example_rows(), "row {} of {}", row, num_example_rows());
  std::size_t index = 0;
  for (; row >= split(index).count(); ++index) row -= split(index).count();
  return {index, row};
}

std::vector<RowDocument> Batcher::documents_of_example_row(std::int64_t row) const {
  const auto [index, number] = place_of_example_row(row);
  return numbered(index, number);
}

void Batcher::fill_example_rows(std::int64_t first, std::int64_t count, const Batch& batch) const {
  BatchRows rows(batch, shape_.seq_length);
  for (std::int64_t row = first; row < first + count; ++row) {
    const auto [index, number] = place_of_example_row(row);
    split(index).write(number, rows);
  }
  rows.finish();
}

}  // namespace sherd::data
