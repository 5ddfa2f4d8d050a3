/// Rows of documents (kernels/documents.h), for tests.
#pragma once

#include "kernels/documents.h"
#include "tests/support/values/tensors.h"

namespace sherd::test {

struct DocumentPlace {
  std::int64_t first, length;  ///< tokens
};

/// Two rows of 430 tokens: documents with lengths around the sizes of strips and tiles, padding
/// between rows and at the end, and a row that begins with a document of one token.
inline constexpr std::int64_t kDocumentPositions = 430;
inline const std::vector<DocumentPlace> kDocumentPlaces = {
    {0, 200}, {200, 24}, {224, 1}, {225, 193}, {430, 1}, {431, 300}, {731, 25}};

struct OwnedDocuments {
  OwnedTensor starts, lengths, positions;
  operator kernels::Documents() const { return {starts, lengths, positions}; }  // NOLINT
};

/// Includes empty documents after the last one, as in a buffer of fixed size.
inline OwnedDocuments documents_in_rows() {
  constexpr std::int32_t kTokens = 2 * kDocumentPositions;
  std::vector<std::int32_t> starts, lengths, positions(kTokens, 0);
  for (const DocumentPlace& place : kDocumentPlaces) {
    starts.push_back(static_cast<std::int32_t>(place.first));
    lengths.push_back(static_cast<std::int32_t>(place.length));
    for (std::int32_t i = 0; i < place.length; ++i) {
      positions[static_cast<std::size_t>(place.first + i)] = i;
    }
  }
  for (int i = 0; i < 3; ++i) {
    starts.push_back(kTokens);
    lengths.push_back(0);
  }
  starts.push_back(kTokens);
  return {OwnedTensor(starts), OwnedTensor(lengths), OwnedTensor(positions)};
}

/// The tokens that belong to no document.
inline std::vector<std::int64_t> padding_tokens() {
  std::vector<bool> used(2 * kDocumentPositions);
  for (const DocumentPlace& place : kDocumentPlaces) {
    for (std::int64_t t = 0; t < place.length; ++t) {
      used[static_cast<std::size_t>(place.first + t)] = true;
    }
  }
  std::vector<std::int64_t> tokens;
  for (std::size_t t = 0; t < used.size(); ++t) {
    if (!used[t]) tokens.push_back(static_cast<std::int64_t>(t));
  }
  return tokens;
}

}  // namespace sherd::test
