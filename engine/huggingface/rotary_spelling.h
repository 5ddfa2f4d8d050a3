/// Writes rotary positions in config.json in both spellings: that of transformers 5
/// (rope_parameters) and that of transformers 4 (rope_theta, rope_scaling, partial_rotary_factor).
#pragma once

#include <nlohmann/json_fwd.hpp>

#include "engine/huggingface/family.h"

namespace sherd::huggingface {

/// Adds the spelling that `config` lacks.
/// Errors   nlohmann's exceptions, if a value has an unexpected type.
void add_both_spellings(nlohmann::ordered_json& config, const Family& family);

}  // namespace sherd::huggingface
