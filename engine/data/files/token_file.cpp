#include "engine/data/files/token_file.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <span>
#include <utility>

#include "core/error.h"
#include "engine/data/files/token_layout.h"
#include "engine/data/utf8.h"

namespace sherd::data {
namespace {

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

/// Little-endian integers of one width.
template <class T>
class IntegerFile final : public TokenFile {
 public:
  IntegerFile(std::shared_ptr<const MappedFile> file, const TokenLayout& layout,
              std::int64_t vocab_size)
      : file_(std::move(file)), layout_(layout), vocab_size_(vocab_size) {}

  const std::string& path() const override { return file_->path(); }
  std::int64_t num_tokens() const override { return layout_.num_tokens; }
  void read(std::int64_t first, std::int64_t count, std::int32_t* ids) const override {
    check_range(*this, first, count);
    file_->check_size();
    const std::uint8_t* bytes = file_->bytes().data() + offset_of(first);
    bool all_known = true;
    for (std::int64_t i = 0; i < count; ++i) {
      T value;
      std::memcpy(&value, bytes + kWidth * i, sizeof(T));
      all_known &= is_known(value);
      ids[i] = static_cast<std::int32_t>(value);
    }
    if (!all_known) throw_first_bad(first, count);
  }
  std::vector<std::int64_t> document_ends() const override {
    return read_document_ends(*file_, layout_);
  }

 private:
  static constexpr std::int64_t kWidth = sizeof(T);
  std::int64_t offset_of(std::int64_t token) const { return layout_.offset + kWidth * token; }
  bool is_known(T value) const {
    return static_cast<std::uint64_t>(static_cast<std::int64_t>(value)) <
           static_cast<std::uint64_t>(vocab_size_);
  }
  [[noreturn]] void throw_first_bad(std::int64_t first, std::int64_t count) const {
    for (std::int64_t token = first; token < first + count; ++token) {
      T value;
      std::memcpy(&value, file_->bytes().data() + offset_of(token), sizeof(T));
      if (!is_known(value)) throw_bad_id(path(), offset_of(token), value, vocab_size_);
    }
    throw DataError("{}: changed while it was read; text must not change while it is trained on.",
                    path());
  }

  std::shared_ptr<const MappedFile> file_;
  TokenLayout layout_;
  std::int64_t vocab_size_;
};

std::unique_ptr<const TokenFile> make_integer_file(std::shared_ptr<const MappedFile> file,
                                                   const TokenLayout& layout,
                                                   std::int64_t vocab_size) {
  switch (layout.token_bytes) {
    case 1:
      return std::make_unique<IntegerFile<std::uint8_t>>(std::move(file), layout, vocab_size);
    case 2:
      return std::make_unique<IntegerFile<std::uint16_t>>(std::move(file), layout, vocab_size);
    case 4:
      return std::make_unique<IntegerFile<std::int32_t>>(std::move(file), layout, vocab_size);
    default:
      return std::make_unique<IntegerFile<std::int64_t>>(std::move(file), layout, vocab_size);
  }
}

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

void TokenFile::read_trained(std::int64_t first, std::int64_t count, std::uint8_t* trained) const {
  check_range(*this, first, count);
  std::fill_n(trained, count, std::uint8_t{1});
}

void check_range(const TokenFile& file, std::int64_t first, std::int64_t count) {
  SHERD_CHECK(first >= 0 && count >= 0 && first <= file.num_tokens() - count,
              "tokens [{}, +{}) of {} in {}", first, count, file.num_tokens(), file.path());
}

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

std::unique_ptr<const TokenFile> make_token_file(std::shared_ptr<const MappedFile> file,
                                                 std::int64_t vocab_size, std::int64_t token_bytes,
                                                 const tokenizer::Tokenizer* tokenizer) {
  const TokenLayout layout = read_token_layout(*file, token_bytes);
  constexpr std::int64_t kMostOfTwoBytes = 1 << 16;
  if (layout.width_is_assumed && vocab_size > kMostOfTwoBytes) {
    throw DataError(
        "{}: has no header that says how wide a token is, and 2 bytes can't name {} tokens; set "
        "data.token_bytes to 2 or 4.",
        file->path(), vocab_size);
  }
  if (tokenizer && layout.header && layout.header->tokenizer_digest != tokenizer->digest()) {
    throw DataError(
        "{}: was made with another tokenizer than data.tokenizer's; set data.tokenizer to its "
        "folder, or make the file again with sherd tokenize.",
        file->path());
  }
  // Values up to here can't be outside of the vocabulary.
  const std::int64_t num_values = layout.token_bytes == 1   ? 256
                                  : layout.token_bytes == 2 ? 65536
                                                            : std::int64_t{1} << 32;
  auto tokens = make_integer_file(std::move(file), layout, vocab_size);
  const std::int64_t checked_at_open = (std::int64_t{1} << 30) / layout.token_bytes;
  constexpr std::int64_t kPiece = std::int64_t{1} << 16;
  const std::int64_t end = std::min(tokens->num_tokens(), checked_at_open);
  std::vector<std::int32_t> ids(static_cast<std::size_t>(std::min(end, kPiece)));
  for (std::int64_t first = 0; vocab_size < num_values && first < end; first += kPiece) {
    tokens->read(first, std::min(kPiece, end - first), ids.data());
  }
  return tokens;
}

std::unique_ptr<const TokenFile> make_id_file(std::string path, std::vector<std::int32_t> ids) {
  return std::make_unique<DecodedFile>(std::move(path), std::move(ids));
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
    SHERD_CHECK(point.length > 0, "{} isn't UTF-8 at byte {}", file->path(), offset);
    ids.push_back(is_ascii(bytes[offset]) ? ascii_ids[bytes[offset]] : id_of(point.value));
    offset += static_cast<std::size_t>(point.length);
  }
  ids.shrink_to_fit();
  return std::make_unique<DecodedFile>(file->path(), std::move(ids));
}

}  // namespace sherd::data
