/// The tiny models of tests/reference/preferences.py and others, whose weights are a formula of their
/// numbers.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "tests/support/values/temp_folder.h"

namespace sherd::test {

/// Writes its folder: config.json with `config`, weights, and a tokenizer of bytes. `first_tensor`:
/// the number of the first tensor; others give other weights.
void write_tiny_llama(const TempFolder& folder, const std::string& name,
                      const nlohmann::json& config, std::size_t first_tensor = 0);

using NamedShapes = std::map<std::string, std::vector<std::int64_t>>;
/// The same of any model, with these tensors.
void write_made_model(const TempFolder& folder, const std::string& name,
                      const nlohmann::json& config, const NamedShapes& shapes,
                      std::size_t first_tensor = 0);

}  // namespace sherd::test
