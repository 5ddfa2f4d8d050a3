/// Translates config.json of a folder into recipe keys of its model.
///
/// Both spellings are read: transformers 4's (rope_theta, rope_scaling, torch_dtype) and 5's
/// (rope_parameters, dtype). Settings that change the model and aren't supported are errors;
/// unknown settings are listed.
/// Errors   DataError naming file and key; for a folder of another kind, it names that kind.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "checkpoint/store/disk.h"
#include "core/dtype.h"
#include "engine/huggingface/family.h"

namespace sherd::huggingface {

inline constexpr const char* kConfigName = "config.json";

/// One key of the recipe.
struct ConfigValue {
  std::string key;    ///< "model.num_layers"
  std::string value;  ///< as YAML
  std::string from;   ///< the key of config.json; "model_type" for what the family implies
};

struct ModelConfig {
  std::string path;  ///< of config.json
  const Family* family = nullptr;
  std::vector<ConfigValue> values;
  std::vector<std::string>
      unused;                  ///< keys that we don't know, and those that are the recipe's own
  std::optional<DType> dtype;  ///< of the weights, if it says
  std::string whole;           ///< model_type of the model of several parts whose text part this is
  /// The longest context that we compute; beyond it the model does what we haven't.
  std::optional<std::int64_t> most_positions;
  std::string beyond;  ///< what that is: "queries grow with their position"
};

ModelConfig parse_config(std::string_view text, const std::string& path);
ModelConfig read_config(checkpoint::Disk& disk, const std::string& folder);

}  // namespace sherd::huggingface
