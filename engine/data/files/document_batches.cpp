#include "engine/data/files/document_batches.h"

#include <algorithm>
#include <cstring>
#include <nlohmann/json.hpp>
#include <utility>

#include "core/error.h"
#include "core/json_bounds.h"

namespace sherd::data {
namespace {

constexpr std::size_t kMaxDocument = std::size_t{1} << 30;
constexpr std::size_t kBufferBytes = std::size_t{1} << 18;

}  // namespace

bool is_jsonl(const std::string& path) {
  const std::string name = unpacked_name(path);
  return name.ends_with(".jsonl") || name.ends_with(".ndjson");
}

bool is_binary(std::span<const std::uint8_t> bytes) {
  constexpr std::size_t kLookedAt = 8192;
  const auto head = bytes.first(std::min(bytes.size(), kLookedAt));
  return std::ranges::find(head, 0) != head.end();
}

std::optional<std::string> take_text(RawDocument& document, const std::string& field) {
  if (document.is_null) return std::nullopt;
  if (!document.is_json) return std::move(document.text);
  const std::string line = std::move(document.text);
  check_json_bounds(line, "the line");
  const nlohmann::json json = nlohmann::json::parse(line, nullptr, false);
  if (json.is_discarded()) throw DataError("isn't JSON");
  if (!json.is_object() || !json.contains(field)) throw DataError("has no \"{}\"", field);
  if (json[field].is_null()) return std::nullopt;
  if (!json[field].is_string()) throw DataError("\"{}\" isn't a string", field);
  return json[field].get<std::string>();
}

DocumentReader::DocumentReader(DocumentSources sources)
    : sources_(std::move(sources)), buffer_(kBufferBytes) {}

std::vector<RawDocument> DocumentReader::next(std::size_t bytes) {
  std::vector<RawDocument> documents;
  std::size_t size = 0;
  for (RawDocument document; size < bytes && next_document(document); document = {}) {
    size += document.text.size();
    documents.push_back(std::move(document));
  }
  return documents;
}

bool DocumentReader::next_document(RawDocument& document) {
  for (; file_ < sources_.files.size(); ++file_, stream_.reset(), rows_.reset()) {
    const std::string& path = sources_.files[file_];
    if (is_table(path)) {
      if (next_row(document)) return true;
      continue;
    }
    const bool is_new = stream_ == nullptr;
    if (is_new) {
      stream_ = open_text_stream(path);
      line_ = 0;
      begin_ = end_ = 0;
    }
    document.file = static_cast<std::int64_t>(file_);
    if (path == "-" ? sources_.stdin_is_jsonl : is_jsonl(path)) {
      while (next_line(document.text)) {
        document.line = ++line_;
        document.is_json = true;
        if (document.text.find_first_not_of(" \t\r") != std::string::npos) return true;
      }
    } else if (is_new) {
      if (is_passed_over()) continue;
      read_all(document.text);
      if (!document.text.empty()) return true;
    }
  }
  return false;
}

/// False at the end of the file.
bool DocumentReader::next_row(RawDocument& document) {
  if (!rows_) {
    rows_ = std::make_unique<ArrowRows>(sources_.files[file_], sources_.column);
    line_ = 0;
  }
  ArrowRows::Row row;
  if (!rows_->next(row)) return false;
  check_size(row.text.size());
  document = {.text = std::string(row.text),
              .line = ++line_,
              .file = static_cast<std::int64_t>(file_),
              .is_json = sources_.column.empty(),
              .is_null = row.is_null};
  return true;
}

bool DocumentReader::refill() {
  begin_ = 0;
  end_ = stream_->read(buffer_.data(), buffer_.size());
  return end_ > 0;
}

/// Without its newline; false at the end.
bool DocumentReader::next_line(std::string& line) {
  line.clear();
  while (begin_ < end_ || refill()) {
    const char* const from = buffer_.data() + begin_;
    const auto* const newline = static_cast<const char*>(std::memchr(from, '\n', end_ - begin_));
    const std::size_t count = newline ? static_cast<std::size_t>(newline - from) : end_ - begin_;
    check_size(line.size() + count);
    line.append(from, count);
    begin_ += count + (newline ? 1 : 0);
    if (newline) return true;
  }
  return !line.empty();
}

/// Leaves what it has read for read_all.
bool DocumentReader::is_passed_over() {
  const bool may_be = file_ < sources_.pass_over_binary.size() && sources_.pass_over_binary[file_];
  if (!may_be || !refill()) return false;
  const bool binary = is_binary({reinterpret_cast<const std::uint8_t*>(buffer_.data()), end_});
  num_binary_ += binary ? 1 : 0;
  return binary;
}

void DocumentReader::read_all(std::string& text) {
  while (begin_ < end_ || refill()) {
    check_size(text.size() + end_ - begin_);
    text.append(buffer_.data() + begin_, end_ - begin_);
    begin_ = end_;
  }
}

void DocumentReader::check_size(std::size_t size) const {
  if (size < kMaxDocument) return;
  throw DataError(
      "{}: document {} has 1 GiB or more; cut it into documents, a line of .jsonl each.",
      sources_.files[file_], line_ + 1);
}

}  // namespace sherd::data
