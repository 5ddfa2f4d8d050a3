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

/// Errors   DataError: no tokenizer there, or with `special_tokens` it has ids that a model of
///          `vocab_size` lacks.
std::shared_ptr<const tokenizer::Tokenizer> open_tokenizer(
    const std::string& folder, const std::vector<std::string>& special_tokens,
    std::int64_t vocab_size);

/// Each file as one document, special tokens as text; on all cores.
/// Errors   DataError: a file that isn't UTF-8, named.
std::vector<std::unique_ptr<const TokenFile>> encode_files(
    const std::vector<std::shared_ptr<const MappedFile>>& files,
    const std::shared_ptr<const tokenizer::Tokenizer>& tokenizer);

}  // namespace sherd::data
