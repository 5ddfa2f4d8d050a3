/// Many short pieces of text, read as one file.
///
///   tokens   piece 0, separator, piece 1, separator, ..., last piece
///
/// The separator is one token (TokenText::separator). It is left out where the text has none, and
/// behind a piece that ends with it already. Order and separators follow from the pieces alone.
///
/// Memory   40 bytes per piece.
/// Errors   as the pieces' own files, which must outlive this one.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "engine/data/files/token_file.h"

namespace sherd::data {

/// Tokens [first, first + count) of `file`, at least one.
struct Piece {
  const TokenFile* file = nullptr;
  std::int64_t first = 0;
  std::int64_t count = 0;
};

std::unique_ptr<const TokenFile> join(const std::vector<Piece>& pieces,
                                      std::optional<std::int32_t> separator);

}  // namespace sherd::data
