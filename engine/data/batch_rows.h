/// Writes the rows of a micro-batch one after the other, with the tables of documents if the batch
/// has them.
#pragma once

#include <cstdint>

#include "engine/data/batch.h"

namespace sherd::data {

class BatchRows {
 public:
  /// All rows become padding: token 0, without targets.
  BatchRows(const Batch& batch, std::int64_t seq_length);

  const Batch& batch() const { return batch_; }
  std::int64_t seq_length() const { return seq_length_; }
  bool has_documents() const { return batch_.starts.data != nullptr; }

  /// Begins the next row. Returns its first token's index in the batch.
  std::int64_t begin_row();
  /// The next document of the row, with positions from 0. A batch without documents ignores it.
  void add_document(std::int64_t token, std::int64_t length);
  /// The rest is padding. Call it once, at the end.
  void finish();

 private:
  Batch batch_;
  std::int64_t seq_length_;
  std::int64_t num_rows_ = 0, num_documents_ = 0;
};

}  // namespace sherd::data
