/// Translates a folder's config.json into the recipe's model keys.
///
/// Reads both spellings: transformers 4's (rope_theta, rope_scaling, torch_dtype) and 5's
/// (rope_parameters, dtype). Unsupported settings that change the model are errors; unknown
/// settings are listed.
/// Errors   DataError naming file and key; for an unsupported model type, it names the type.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "checkpoint/store/disk.h"
#include "core/dtype.h"
#include "engine/huggingface/coded_weights.h"
#include "engine/huggingface/family.h"

namespace sherd::huggingface {

inline constexpr const char* kConfigName = "config.json";

/// One key of the recipe.
struct ConfigValue {
  std::string key;    ///< "model.num_layers"
  std::string value;  ///< as YAML
  std::string from;   ///< the key of config.json; "model_type" if the family implies the value
};

struct ModelConfig {
  std::string path;  ///< of config.json
  const Family* family = nullptr;
  std::vector<ConfigValue> values;
  std::vector<std::string> unused;  ///< unknown keys, and keys that the recipe sets instead
  std::optional<DType> dtype;       ///< of the weights, if given
  std::string whole;                ///< model_type of the multi-part model whose text part this is
  CodeBlocks codes;                 ///< of weights in 8 bits
  /// moe.balance_loss as the class trains, if the file says so (output_router_logits).
  std::optional<ConfigValue> balance_loss;
  std::int64_t prediction_layers = 0;  ///< layers after the last that predict further tokens
  /// The longest supported context; beyond it the model does something unsupported.
  std::optional<std::int64_t> most_positions;
  std::string beyond;  ///< what it does: "queries grow with their position"
};

/// The value of one of the recipe's keys, or "".
std::string value_of(const ModelConfig& config, std::string_view key);

ModelConfig parse_config(std::string_view text, const std::string& path);
ModelConfig read_config(checkpoint::Disk& disk, const std::string& folder);

}  // namespace sherd::huggingface
