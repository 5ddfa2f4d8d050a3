/// Splits texts into documents, a batch at a time, in order.
///
///   X.jsonl, X.ndjson   a line is a document: its string `field`. Empty lines are skipped.
///   X.parquet, X.arrow  a row is a document: the text in `column`, or the row as JSON
///   anything else       a file is a document; so is standard input, unless `stdin_is_jsonl`. Empty
///                       files are skipped.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "engine/data/arrow/arrow_rows.h"
#include "engine/data/files/text_stream.h"

namespace sherd::data {

struct RawDocument {
  std::string text;       ///< a line of JSON, or the document itself
  std::int64_t line = 0;  ///< or row, counted from 1; 0: a whole file
  std::int64_t file = 0;  ///< index in the list of files
  bool is_json = false;
  bool is_null = false;  ///< a row without a value
};

struct DocumentSources {
  std::vector<std::string> files;  ///< "-" is standard input
  bool stdin_is_jsonl = false;
  std::vector<bool> pass_over_binary{};  ///< for each file; empty: false for all
  std::string column{};                  ///< of tables; empty: their rows as JSON
};

class DocumentReader {
 public:
  explicit DocumentReader(DocumentSources sources);

  /// Documents until their text is at least `bytes`; empty at the end.
  /// Errors   DataError: unreadable or damaged files, documents of 1 GiB or more.
  std::vector<RawDocument> next(std::size_t bytes);
  std::int64_t num_binary() const { return num_binary_; }  ///< files that were skipped

 private:
  bool next_document(RawDocument& document);
  bool next_row(RawDocument& document);
  bool next_line(std::string& line);
  void read_all(std::string& text);
  bool is_passed_over();
  bool refill();
  void check_size(std::size_t size) const;

  DocumentSources sources_;
  std::int64_t num_binary_ = 0;
  std::size_t file_ = 0;
  std::unique_ptr<TextStream> stream_;  ///< files[file_], once it is open
  std::unique_ptr<ArrowRows> rows_;     ///< likewise, if it is a table
  std::int64_t line_ = 0;
  std::vector<char> buffer_;
  std::size_t begin_ = 0;
  std::size_t end_ = 0;
};

bool is_jsonl(const std::string& path);

/// Git's rule: a zero byte near the beginning.
bool is_binary(std::span<const std::uint8_t> bytes);

/// Takes the document's text: of a line of JSON, the string at `field`. Nothing if it is null.
/// Errors   DataError, without a place: not JSON, no such key, not a string.
std::optional<std::string> take_text(RawDocument& document, const std::string& field);

}  // namespace sherd::data
