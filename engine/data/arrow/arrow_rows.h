/// Rows of .parquet and .arrow files, by an optional library that is loaded when it is first needed
/// (arrow_module.h). Without it, everything else works.
///
///   .parquet   Parquet
///   .arrow     Arrow IPC, the file format or the stream format (as Hugging Face `datasets` writes)
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "engine/data/arrow/arrow_module.h"

namespace sherd::data {

/// Whether the name ends with .parquet or .arrow.
bool is_table(std::string_view path);

enum class TableContent { kTexts, kIds };

/// Reads a file's rows in order, about a MiB at a time.
class ArrowRows {
 public:
  struct Row {
    std::string_view text;  ///< valid until the next call of next()
    bool is_null = false;
  };
  /// Texts of `column`: string, large_string, string_view, or a dictionary of one of them. With an
  /// empty `column`, each row is a text: a JSON object of all columns.
  /// Errors   DataError, one line: no such library, not such a file, no such column, another type.
  /// With kIds, a column of lists of whole numbers (list, large_list, fixed-size list). The bytes
  /// of a row's text are its numbers as i32; -1 for nulls and for what i32 can't hold.
  ArrowRows(const std::string& path, const std::string& column,
            TableContent content = TableContent::kTexts);
  ~ArrowRows();
  ArrowRows(const ArrowRows&) = delete;
  ArrowRows& operator=(const ArrowRows&) = delete;

  /// False at the end.
  /// Errors   DataError: the file is damaged.
  bool next(Row& row);

 private:
  std::string path_;
  const ArrowModule& module_;
  void* reader_ = nullptr;
  ArrowTexts texts_{};
  std::int64_t row_ = 0;
  std::int64_t begin_ = 0;
};

/// Loads the first of `places` that exists. It stays loaded.
/// Errors   DataError, starting with `path`, the file that needs it: there is none, it can't be
///          loaded, or it has another interface than this program.
const ArrowModule& load_arrow_module(const std::vector<std::string>& places,
                                     const std::string& path);

/// For `sherd info`: "Parquet and Arrow files, by Arrow 26.0.1", or why there are none.
std::string arrow_text();

/// $SHERD_ARROW_MODULE if it is set; else the program's folder, the folder above, and ../lib.
std::vector<std::string> places_of_arrow_module();

}  // namespace sherd::data
