/// Special tokens that a run adds to its tokenizer (model.add_special_tokens), in the files that others read.
///
/// Each gets the id that Hugging Face's library gives a token that it adds: the next one behind all
/// others. engine/data/tokenizer reads the same files with the same tokens added, and counts alike.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "checkpoint/store/disk.h"

namespace sherd::huggingface {

/// One more than the largest id of the tokenizer in `folder` with `tokens`.
/// Errors   UsageError if it has one of them already; DataError for a tokenizer.json that isn't one.
std::int64_t num_ids_with(checkpoint::Disk& disk, const std::string& folder,
                          const std::vector<std::string>& tokens);

/// Writes them into tokenizer.json, and into tokenizer_config.json where that lists added tokens too.
/// `files` are names and contents; without a tokenizer.json nothing changes.
void add_special_tokens(const std::vector<std::string>& tokens,
                        std::map<std::string, std::string>& files);

}  // namespace sherd::huggingface
