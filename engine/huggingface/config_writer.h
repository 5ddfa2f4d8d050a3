/// config.json for weights that we write: readable by transformers 4 and 5 alike.
#pragma once

#include <map>
#include <string>
#include <string_view>

#include "core/dtype.h"
#include "engine/huggingface/family.h"

namespace sherd::huggingface {

/// The config.json that a run has kept, with the weights' type, and what it says of rotary positions
/// in both spellings. Everything else stays as it is.
std::string updated_config(std::string_view kept, const std::string& path, DType dtype);

/// The config.json of a model that a recipe describes: `values` are its model keys, as YAML, by their
/// names ("model.num_layers"). What a family can't say is left out: whoever calls reads the text back
/// and compares.
std::string config_of(const Family& family, const std::map<std::string, std::string>& values,
                      DType dtype);

}  // namespace sherd::huggingface
