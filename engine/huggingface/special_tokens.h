/// Writes the special tokens that a run adds to its tokenizer (model.add_special_tokens) into the
/// files that other programs read.
///
/// Each token gets the id that Hugging Face's library gives an added token: one more than all
/// others. engine/data/tokenizer reads the same files with the same tokens added, and gives the
/// same ids.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "checkpoint/store/disk.h"

namespace sherd::huggingface {

/// One more than the largest id of the tokenizer in `folder` with `tokens`.
/// Errors   UsageError if it already has one of them; DataError for an invalid tokenizer.json.
std::int64_t num_ids_with(checkpoint::Disk& disk, const std::string& folder,
                          const std::vector<std::string>& tokens);

/// Writes `tokens` into tokenizer.json, and into tokenizer_config.json if it lists added tokens.
/// `files` maps names to contents; without a tokenizer.json nothing changes.
void add_special_tokens(const std::vector<std::string>& tokens,
                        std::map<std::string, std::string>& files);

}  // namespace sherd::huggingface
