#include "engine/data/texts.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "core/error.h"
#include "engine/data/files/document_batches.h"
#include "engine/data/files/text_files.h"
#include "engine/data/files/text_stream.h"
#include "engine/data/files/token_layout.h"

namespace sherd::data {
namespace {

constexpr std::size_t kBatchBytes = std::size_t{16} << 20;

bool is_packed(const std::string& path) {
  return unpacked_name(path) != path;
}

void refuse_other_packings(const std::string& path) {
  if (is_packed(path) && is_table(unpacked_name(path))) {
    throw DataError("{}: unpack it; Parquet and Arrow files are packed inside.", path);
  }
  for (const char* ending : {".bz2", ".xz", ".lz4", ".zip", ".7z"}) {
    if (!path.ends_with(ending)) continue;
    throw DataError(
        "{}: a {} file isn't read as text; give plain text, .jsonl, either packed as .gz or .zst, "
        "or .parquet or .arrow.",
        path, ending);
  }
}

struct FileTexts {
  MappedFiles texts{};
  bool is_binary = false;
  std::int64_t num_null = 0;
};

FileTexts unpacked(const std::string& path, bool may_be_binary) {
  DocumentReader reader({.files = {path}, .pass_over_binary = {!may_be_binary}});
  std::vector<RawDocument> document = reader.next(1);
  if (document.empty()) return {.is_binary = reader.num_binary() > 0};
  const auto memory = std::make_shared<const std::string>(std::move(document[0].text));
  return {{std::make_shared<const MappedFile>(path, memory, *memory)}};
}

/// The texts of lines or rows; each knows its own.
FileTexts texts_of_lines(const std::string& path, const std::string& field) {
  DocumentReader reader({.files = {path}, .column = field});
  FileTexts texts;
  for (auto lines = reader.next(kBatchBytes); !lines.empty(); lines = reader.next(kBatchBytes)) {
    std::string all;
    std::vector<std::pair<std::int64_t, std::size_t>> ends;  // line, end
    for (RawDocument& line : lines) {
      try {
        const std::optional<std::string> text = take_text(line, field);
        if (!text) ++texts.num_null;
        all += text.value_or("");
      } catch (const DataError& error) {
        throw DataError(
            "{}:{}: {}; data.field names the string that is a line's text, and data.format: chat "
            "reads conversations.",
            path, line.line, error.what());
      }
      ends.emplace_back(line.line, all.size());
    }
    const auto memory = std::make_shared<const std::string>(std::move(all));
    std::size_t begin = 0;
    for (const auto& [line, end] : ends) {
      if (end == begin) continue;
      texts.texts.push_back(
          std::make_shared<const MappedFile>(fmt::format("{}:{}", path, line), memory,
                                             std::string_view(*memory).substr(begin, end - begin)));
      begin = end;
    }
  }
  return texts;
}

FileTexts texts_of(const std::shared_ptr<const MappedFile>& file, const std::string& field,
                   bool may_be_binary) {
  if (is_table(file->path())) {
    return file->bytes().empty() ? FileTexts() : texts_of_lines(file->path(), field);
  }
  if (is_jsonl(file->path())) return texts_of_lines(file->path(), field);
  if (is_packed(file->path())) return unpacked(file->path(), may_be_binary);
  if (file->bytes().empty()) return {};
  if (!may_be_binary && is_binary(file->bytes())) return {.is_binary = true};
  return {{file}};
}

}  // namespace

Texts open_texts(const std::string& path, std::string_view key, const std::string& field) {
  const TextFiles found = find_text_files(path, "", key);
  Texts texts{.num_of_runs = found.num_of_runs};
  if (found.named) refuse_other_packings(path);
  for (const std::string& name : found.paths) {
    auto file = std::make_shared<const MappedFile>(name);
    if (found.named && has_token_header(*file)) {
      throw DataError("{}: is a file of tokens; set data.format: bin.", name);
    }
    FileTexts of_file = texts_of(file, field, found.named);
    texts.num_null += of_file.num_null;
    if (of_file.is_binary) {
      ++texts.num_binary;
    } else if (!of_file.texts.empty()) {
      std::ranges::move(of_file.texts, std::back_inserter(texts.texts));
      texts.files.push_back(std::move(file));
    } else {
      if (found.named) throw DataError("{}: is empty; set {} to text.", name, key);
      ++texts.num_empty;
    }
  }
  if (!texts.texts.empty()) return texts;
  throw DataError("{}: none of its {} file{} has text ({} empty, {} binary); set {} to text.", path,
                  found.paths.size(), found.paths.size() == 1 ? "" : "s", texts.num_empty,
                  texts.num_binary, key);
}

void require_tokens(const std::string& path) {
  if (!is_packed(path) && !is_jsonl(path)) return;
  throw DataError(
      "{}: data.format bin reads files of tokens, {}; make one with sherd tokenize, or set another "
      "data.format.",
      path, is_packed(path) ? "unpacked" : "not lines of text");
}

}  // namespace sherd::data
