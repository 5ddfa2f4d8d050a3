#include "engine/data/characters.h"

#include <algorithm>
#include <array>
#include <span>

#include "core/error.h"
#include "engine/data/utf8.h"

namespace sherd::data {
namespace {

/// Where the text stops being UTF-8, or -1; marks the characters it has up to there.
std::int64_t mark_characters(std::span<const std::uint8_t> bytes, std::vector<bool>& seen) {
  std::array<bool, 128> ascii{};
  std::int64_t bad = -1;
  for (std::size_t offset = 0; offset < bytes.size();) {
    if (bytes[offset] < 0x80) {
      ascii[bytes[offset++]] = true;
      continue;
    }
    const CodePoint point = decode_utf8(bytes, offset);
    if (point.length == 0) {
      bad = static_cast<std::int64_t>(offset);
      break;
    }
    seen[point.value] = true;
    offset += static_cast<std::size_t>(point.length);
  }
  for (std::size_t i = 0; i < ascii.size(); ++i) {
    if (ascii[i]) seen[i] = true;
  }
  return bad;
}

void require_known(const MappedFiles& files, std::vector<bool>& seen,
                   const std::vector<char32_t>& known) {
  for (const char32_t point : known) seen[point] = false;
  const auto unknown = std::find(seen.begin(), seen.end(), true);
  if (unknown == seen.end()) return;
  throw DataError("{}: has the character U+{:04X}, which isn't among the {} that the model knows.",
                  files.back()->path(), unknown - seen.begin(), known.size());
}

}  // namespace

std::vector<bool> characters_of(const MappedFiles& files) {
  std::vector<bool> seen(kNumCodePoints);
  for (const auto& file : files) {
    const std::int64_t bad = mark_characters(file->bytes(), seen);
    if (bad < 0) continue;
    throw DataError(
        "{}: not UTF-8 at byte {} (0x{:02x}); convert the file to UTF-8, or set "
        "data.format to bytes.",
        file->path(), bad, file->bytes()[static_cast<std::size_t>(bad)]);
  }
  return seen;
}

std::vector<char32_t> vocabulary_of(const MappedFiles& files, const std::string& path,
                                    std::int64_t vocab_size, const std::vector<char32_t>& known) {
  std::vector<bool> seen = characters_of(files);
  if (!known.empty()) {
    require_known(files, seen, known);
    return known;
  }
  std::vector<char32_t> characters;
  for (std::size_t point = 0; point < seen.size(); ++point) {
    if (seen[point]) characters.push_back(static_cast<char32_t>(point));
  }
  if (std::ssize(characters) != vocab_size) {
    throw DataError(
        "{}: the text has {} distinct characters, but model.vocab_size is {}; set "
        "model.vocab_size to {}.",
        path, characters.size(), vocab_size, characters.size());
  }
  return characters;
}

}  // namespace sherd::data
