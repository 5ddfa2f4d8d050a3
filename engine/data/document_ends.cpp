#include "engine/data/document_ends.h"

#include <algorithm>
#include <optional>

#include "core/error.h"

namespace sherd::data {

std::vector<std::int64_t> document_ends_of(const TokenFile& file,
                                           const tokenizer::Tokenizer* tokenizer) {
  std::vector<std::int64_t> ends = file.document_ends();
  if (!ends.empty() || file.num_tokens() == 0) return ends;
  const auto end_token = tokenizer ? tokenizer->end() : std::nullopt;
  if (!end_token) {
    throw DataError(
        "{}: doesn't say where its documents end, which data.documents: separate needs. Set "
        "data.tokenizer to a folder that names its end token, make the file with sherd tokenize, "
        "or set data.documents: joined.",
        file.path());
  }
  constexpr std::int64_t kPiece = std::int64_t{1} << 16;
  std::vector<std::int32_t> ids;
  for (std::int64_t first = 0; first < file.num_tokens(); first += kPiece) {
    const std::int64_t count = std::min(kPiece, file.num_tokens() - first);
    ids.resize(static_cast<std::size_t>(count));
    file.read(first, count, ids.data());
    for (std::int64_t i = 0; i < count; ++i) {
      if (ids[static_cast<std::size_t>(i)] == *end_token) ends.push_back(first + i + 1);
    }
  }
  if (ends.empty() || ends.back() < file.num_tokens()) ends.push_back(file.num_tokens());
  return ends;
}

}  // namespace sherd::data
