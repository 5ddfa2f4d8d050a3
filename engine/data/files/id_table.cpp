#include "engine/data/files/id_table.h"

#include <algorithm>
#include <cstring>
#include <span>
#include <utility>
#include <vector>

#include "core/error.h"
#include "engine/data/arrow/arrow_rows.h"
#include "engine/data/fingerprint.h"

namespace sherd::data {
namespace {

class IdTable final : public TokenFile {
 public:
  IdTable(std::string path, std::vector<std::int32_t> ids, std::vector<std::int64_t> ends)
      : path_(std::move(path)), ids_(std::move(ids)), ends_(std::move(ends)) {}

  const std::string& path() const override { return path_; }
  std::int64_t num_tokens() const override { return std::ssize(ids_); }
  void read(std::int64_t first, std::int64_t count, std::int32_t* ids) const override {
    check_range(*this, first, count);
    std::copy_n(ids_.begin() + first, count, ids);
  }
  std::vector<std::int64_t> document_ends() const override { return ends_; }

 private:
  std::string path_;
  std::vector<std::int32_t> ids_;
  std::vector<std::int64_t> ends_;
};

}  // namespace

std::unique_ptr<const TokenFile> make_id_table(const std::string& path, const std::string& column,
                                               std::int64_t vocab_size) {
  ArrowRows rows(path, column, TableContent::kIds);
  std::vector<std::int32_t> ids;
  std::vector<std::int64_t> ends;
  for (ArrowRows::Row row; rows.next(row);) {
    const std::size_t before = ids.size();
    ids.resize(before + row.text.size() / sizeof(std::int32_t));
    if (!row.text.empty()) std::memcpy(ids.data() + before, row.text.data(), row.text.size());
    ends.push_back(std::ssize(ids));
    const auto is_wrong = [&](std::int32_t id) { return id < 0 || id >= vocab_size; };
    if (std::any_of(ids.begin() + static_cast<std::ptrdiff_t>(before), ids.end(), is_wrong)) {
      throw DataError("{}: row {} of column \"{}\" has an id that isn't a token from 0 to {}.",
                      path, ends.size() - 1, column, vocab_size - 1);
    }
  }
  if (ids.empty()) throw DataError("{}: column \"{}\" has no token ids.", path, column);
  ids.shrink_to_fit();
  return std::make_unique<IdTable>(path, std::move(ids), std::move(ends));
}

std::uint64_t fingerprint_of_ids(const TokenFile& file) {
  std::vector<std::int32_t> ids(static_cast<std::size_t>(file.num_tokens()));
  file.read(0, std::ssize(ids), ids.data());
  return fingerprint_of(std::span(reinterpret_cast<const std::uint8_t*>(ids.data()),
                                  ids.size() * sizeof(std::int32_t)));
}

TextFiles find_token_files(const std::string& path, std::string_view key) {
  try {
    return find_text_files(path, ".bin", key);
  } catch (const DataError&) {
    TextFiles tables = find_text_files(path, "", key);
    std::erase_if(tables.paths, [](const std::string& name) { return !is_table(name); });
    if (tables.paths.empty()) throw;
    return tables;
  }
}

}  // namespace sherd::data
