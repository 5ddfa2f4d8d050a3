/// What rows of a record batch are as text.
#pragma once

#include <arrow/record_batch.h>
#include <arrow/status.h>

#include <cstdint>
#include <string>

namespace sherd::data {

/// Checks a batch whose bytes come from a file: offsets, indices and lengths. Whether texts of a
/// column of texts are UTF-8 is for their reader to say, as in other files.
arrow::Status check_batch(const arrow::RecordBatch& batch, bool is_texts);

/// Appends the text of a string, or of a dictionary's string. False: it is null.
bool append_text(const arrow::Array& column, std::int64_t row, std::string& to);

/// Appends a list's whole numbers as i32; -1 for nulls and for what i32 can't hold. False: the list
/// is null.
bool append_ids(const arrow::Array& column, std::int64_t row, std::string& to);

/// Appends a row as a JSON object of its columns, in their order.
///
///   numbers, booleans, strings   as in JSON; NaN and infinities are null
///   lists, structs               arrays, objects
///   maps                         objects, if the keys are strings; else arrays of [key, value]
///   binary                       base64
///   dates, times, decimals, ...  strings, as Arrow writes them
arrow::Status append_json(const arrow::RecordBatch& batch, std::int64_t row, std::string& to);

}  // namespace sherd::data
