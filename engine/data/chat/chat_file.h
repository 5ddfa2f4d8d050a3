/// A file of conversations, read as tokens: a conversation is a document (conversation.h, chat_format.h).
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "engine/data/chat/chat_format.h"
#include "engine/data/files/token_file.h"

namespace sherd::data {

/// A .jsonl file, also .gz or .zst, on all cores; ids stay in memory, 5 bytes a token. `seq_length`: what
/// is longer is unfit. Whatever else is wrong with a row makes it unfit too (unfit_row.h); `counts` has the
/// rows that are left out by reason, each with its first.
/// Errors   DataError with file and line: with kError a row that is unfit; no template
std::unique_ptr<const TokenFile> open_chat_file(
    const std::string& path, const ChatFormat& format, Unfit unfit, std::int64_t seq_length,
    const std::shared_ptr<const tokenizer::Tokenizer>& tokenizer, ChatCounts& counts);

}  // namespace sherd::data
