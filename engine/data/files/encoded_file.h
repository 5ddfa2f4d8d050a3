/// Small texts, encoded by a tokenizer when they are opened: ids stay in memory, 4 bytes each.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "engine/data/files/token_file.h"
#include "engine/data/mapped_file.h"
#include "engine/data/tokenizer/tokenizer.h"

namespace sherd::data {

/// Errors   DataError: `folder` has no tokenizer; with `special_tokens`, it has more ids than
///          `vocab_size`.
std::shared_ptr<const tokenizer::Tokenizer> open_tokenizer(
    const std::string& folder, const std::vector<std::string>& special_tokens,
    std::int64_t vocab_size);

/// Encodes each file as one document, special tokens as text, on all cores.
/// Errors   DataError naming a file that isn't UTF-8.
std::vector<std::unique_ptr<const TokenFile>> encode_files(
    const std::vector<std::shared_ptr<const MappedFile>>& files,
    const std::shared_ptr<const tokenizer::Tokenizer>& tokenizer);

}  // namespace sherd::data
