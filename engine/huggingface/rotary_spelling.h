/// Rotary positions in config.json as transformers 5 spells them (rope_parameters) and as 4 does (rope_theta,
/// rope_scaling, partial_rotary_factor), side by side.
#pragma once

#include <nlohmann/json_fwd.hpp>

#include "engine/huggingface/family.h"

namespace sherd::huggingface {

/// Adds the spelling that `config` lacks.
/// Errors   nlohmann's, where a value is of another kind than expected.
void add_both_spellings(nlohmann::ordered_json& config, const Family& family);

}  // namespace sherd::huggingface
