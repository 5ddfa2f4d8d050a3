#include "engine/data/token_file.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <span>
#include <utility>

#include "core/error.h"
#include "engine/data/utf8.h"

namespace sherd::data {
namespace {

void check_range(const TokenFile& file, std::int64_t first, std::int64_t count) {
  CHECK(first >= 0 && count >= 0 && first <= file.num_tokens() - count,
        "tokens [{}, +{}) of {} in {}", first, count, file.num_tokens(), file.path());
}

[[noreturn]] void throw_bad_id(const std::string& path, std::int64_t offset, std::int64_t id,
                               std::int64_t vocab_size) {
  throw DataError(
      "{}: token id {} at byte {}, but model.vocab_size {} allows ids up to {}; raise "
      "model.vocab_size or give text of this vocabulary.",
      path, id, offset, vocab_size, vocab_size - 1);
}

/// Bytes, each looked up in a table of ids.
class ByteFile final : public TokenFile {
 public:
  ByteFile(std::shared_ptr<const MappedFile> file, const std::array<std::int32_t, 256>& ids)
      : file_(std::move(file)), ids_(ids) {}

  const std::string& path() const override { return file_->path(); }
  std::int64_t num_tokens() const override { return std::ssize(file_->bytes()); }
  void read(std::int64_t first, std::int64_t count, std::int32_t* ids) const override {
    check_range(*this, first, count);
    file_->check_size();
    const std::uint8_t* bytes = file_->bytes().data() + first;
    std::transform(bytes, bytes + count, ids, [this](std::uint8_t byte) { return ids_[byte]; });
  }

 private:
  std::shared_ptr<const MappedFile> file_;
  std::array<std::int32_t, 256> ids_;
};

class Uint16File final : public TokenFile {
 public:
  Uint16File(std::shared_ptr<const MappedFile> file, std::int64_t vocab_size)
      : file_(std::move(file)), vocab_size_(vocab_size) {}

  const std::string& path() const override { return file_->path(); }
  std::int64_t num_tokens() const override { return std::ssize(file_->bytes()) / 2; }
  void read(std::int64_t first, std::int64_t count, std::int32_t* ids) const override {
    check_range(*this, first, count);
    file_->check_size();
    const std::uint8_t* bytes = file_->bytes().data() + 2 * first;
    std::int32_t largest = 0;
    for (std::int64_t i = 0; i < count; ++i) {
      ids[i] = bytes[2 * i] | (bytes[2 * i + 1] << 8);
      largest = std::max(largest, ids[i]);
    }
    if (largest < vocab_size_) return;
    const std::int64_t bad =
        std::find_if(ids, ids + count, [this](std::int32_t id) { return id >= vocab_size_; }) - ids;
    throw_bad_id(path(), 2 * (first + bad), ids[bad], vocab_size_);
  }

 private:
  std::shared_ptr<const MappedFile> file_;
  std::int64_t vocab_size_;
};

/// Text with characters of several bytes: where the i-th begins can't be computed, so it is
/// decoded.
class DecodedFile final : public TokenFile {
 public:
  DecodedFile(std::string path, std::vector<std::int32_t> ids)
      : path_(std::move(path)), ids_(std::move(ids)) {}

  const std::string& path() const override { return path_; }
  std::int64_t num_tokens() const override { return std::ssize(ids_); }
  void read(std::int64_t first, std::int64_t count, std::int32_t* ids) const override {
    check_range(*this, first, count);
    std::copy_n(ids_.begin() + first, count, ids);
  }

 private:
  std::string path_;
  std::vector<std::int32_t> ids_;
};

}  // namespace

std::unique_ptr<const TokenFile> make_byte_file(std::shared_ptr<const MappedFile> file,
                                                std::int64_t vocab_size) {
  std::array<std::int32_t, 256> ids{};
  for (std::size_t byte = 0; byte < ids.size(); ++byte) {
    ids[byte] = static_cast<std::int32_t>(byte);
  }
  if (vocab_size < 256) {
    const auto bytes = file->bytes();
    const auto bad = std::find_if(bytes.begin(), bytes.end(),
                                  [&](std::uint8_t byte) { return byte >= vocab_size; });
    if (bad != bytes.end()) throw_bad_id(file->path(), bad - bytes.begin(), *bad, vocab_size);
  }
  return std::make_unique<ByteFile>(std::move(file), ids);
}

std::unique_ptr<const TokenFile> make_uint16_file(std::shared_ptr<const MappedFile> file,
                                                  std::int64_t vocab_size) {
  if (file->bytes().size() % 2 != 0) {
    throw DataError(
        "{}: has {} bytes, but data.format bin is 2 bytes per token; the file is cut "
        "short or not of this format.",
        file->path(), file->bytes().size());
  }
  auto tokens = std::make_unique<Uint16File>(std::move(file), vocab_size);
  constexpr std::int64_t kCheckedAtOpen = std::int64_t{1} << 29;  // 1 GiB
  constexpr std::int64_t kPiece = std::int64_t{1} << 16;
  const std::int64_t end = std::min(tokens->num_tokens(), kCheckedAtOpen);
  std::vector<std::int32_t> ids(static_cast<std::size_t>(std::min(end, kPiece)));
  for (std::int64_t first = 0; vocab_size < 65536 && first < end; first += kPiece) {
    tokens->read(first, std::min(kPiece, end - first), ids.data());
  }
  return tokens;
}

std::unique_ptr<const TokenFile> make_character_file(std::shared_ptr<const MappedFile> file,
                                                     const std::vector<char32_t>& characters) {
  const auto id_of = [&](char32_t character) {
    const auto place = std::lower_bound(characters.begin(), characters.end(), character);
    return static_cast<std::int32_t>(place - characters.begin());
  };
  std::array<std::int32_t, 256> ascii_ids{};
  for (std::size_t byte = 0; byte < 128; ++byte) {
    ascii_ids[byte] = id_of(static_cast<char32_t>(byte));
  }
  const auto bytes = file->bytes();
  const auto is_ascii = [](std::uint8_t byte) { return byte < 0x80; };
  if (std::all_of(bytes.begin(), bytes.end(), is_ascii)) {
    return std::make_unique<ByteFile>(std::move(file), ascii_ids);
  }
  std::vector<std::int32_t> ids;
  ids.reserve(bytes.size());
  for (std::size_t offset = 0; offset < bytes.size();) {
    const CodePoint point = decode_utf8(bytes, offset);
    CHECK(point.length > 0, "{} isn't UTF-8 at byte {}", file->path(), offset);
    ids.push_back(is_ascii(bytes[offset]) ? ascii_ids[bytes[offset]] : id_of(point.value));
    offset += static_cast<std::size_t>(point.length);
  }
  ids.shrink_to_fit();
  return std::make_unique<DecodedFile>(file->path(), std::move(ids));
}

}  // namespace sherd::data
