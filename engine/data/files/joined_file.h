/// Many short pieces of text, read as one file.
///
///   tokens   piece 0, separator, piece 1, separator, ..., last piece
///
/// The separator is one token (TokenText::separator). It is omitted if the text has none, and after
/// a piece that already ends with it. Order and separators depend on the pieces alone.
///
/// The pieces' files must outlive this one.
/// Memory   40 bytes per piece.
/// Errors   as reading the pieces' files.
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
