/// Writes config.json for exported weights; transformers 4 and 5 can both read it.
#pragma once

#include <map>
#include <string>
#include <string_view>

#include "core/dtype.h"
#include "engine/huggingface/family.h"

namespace sherd::huggingface {

/// The config.json that a run has kept, with the weights' type, and with rotary positions in both
/// spellings. Everything else stays unchanged.
std::string updated_config(std::string_view kept, const std::string& path, DType dtype);

/// The config.json of a model that a recipe describes: `values` are its model keys, as YAML, by
/// their names ("model.num_layers"). Settings that a family can't express are left out, so the
/// caller must read the text back and compare.
std::string config_of(const Family& family, const std::map<std::string, std::string>& values,
                      DType dtype);

}  // namespace sherd::huggingface
