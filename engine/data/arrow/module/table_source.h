/// A Parquet or Arrow file as record batches, read a piece at a time.
#pragma once

#include <arrow/record_batch.h>
#include <arrow/result.h>

#include <memory>

#include "engine/data/arrow/arrow_module.h"

namespace sherd::data {

class TableSource {
 public:
  virtual ~TableSource() = default;
  /// Null at the end, after which it isn't called again. With a column requested, batches have only this one.
  virtual arrow::Result<std::shared_ptr<arrow::RecordBatch>> next() = 0;
};

/// Errors   not such a file; no such column, or one that has no texts
arrow::Result<std::unique_ptr<TableSource>> open_table(const ArrowRequest& request);

}  // namespace sherd::data
