/// Where the documents of a file of tokens end.
#pragma once

#include <cstdint>
#include <vector>

#include "engine/data/files/token_file.h"
#include "engine/data/tokenizer/tokenizer.h"

namespace sherd::data {

/// One behind the last token of each, ascending: what the file says, or else behind each end token of
/// `tokenizer` (may be null) and behind the last token.
/// Errors   DataError: neither says it
std::vector<std::int64_t> document_ends_of(const TokenFile& file,
                                           const tokenizer::Tokenizer* tokenizer);

}  // namespace sherd::data
