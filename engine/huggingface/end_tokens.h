/// The tokens at which a model's text ends, as its folder says.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "checkpoint/store/disk.h"

namespace sherd::huggingface {

/// `eos_token_id`, an id or a list of them, of generation_config.json; without it, or without that file,
/// of config.json. Empty if neither names one, or there is no such folder.
/// Errors   DataError for a file that isn't JSON, or another kind of value.
std::vector<std::int32_t> end_tokens(checkpoint::Disk& disk, const std::string& folder);

}  // namespace sherd::huggingface
