/// The ends of the documents in a token file.
#pragma once

#include <cstdint>
#include <vector>

#include "engine/data/files/token_file.h"
#include "engine/data/tokenizer/tokenizer.h"

namespace sherd::data {

/// One past the last token of each document, ascending. They come from the file. Otherwise, a
/// document ends after each end token of `tokenizer` (may be null) and after the last token.
/// Errors   DataError: neither the file nor the tokenizer defines document ends
std::vector<std::int64_t> document_ends_of(const TokenFile& file,
                                           const tokenizer::Tokenizer* tokenizer);

}  // namespace sherd::data
