/// A file of conversations, read as tokens. Each conversation is a document (conversation.h,
/// chat_format.h).
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "engine/data/chat/chat_format.h"
#include "engine/data/files/token_file.h"

namespace sherd::data {

/// Reads a .jsonl file, also .gz or .zst, or the rows of a table as such lines, on all cores. Ids stay in memory, 5 bytes a token. Rows
/// longer than `seq_length` (of preferences, both answers' together) are unfit, as are rows with any other problem (unfit_row.h). `counts`
/// gets the dropped rows by reason, with the first row of each.
/// Errors   DataError with file and line: an unfit row with kError; no template
std::unique_ptr<const TokenFile> open_chat_file(
    const std::string& path, const ChatFormat& format, Unfit unfit, ExampleKind kind,
    std::int64_t seq_length, const std::shared_ptr<const tokenizer::Tokenizer>& tokenizer,
    ChatCounts& counts);

}  // namespace sherd::data
