/// The tokens that end a model's text, read from its folder.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "checkpoint/store/disk.h"

namespace sherd::huggingface {

/// `eos_token_id`, an id or a list of ids, from generation_config.json. If it is missing there,
/// from config.json. Empty if neither names one, or there is no such folder.
/// Errors   DataError for a file that isn't JSON, or a value of another type.
std::vector<std::int32_t> end_tokens(checkpoint::Disk& disk, const std::string& folder);

}  // namespace sherd::huggingface
