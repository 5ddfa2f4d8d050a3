#include "engine/huggingface/end_tokens.h"

#include <limits>
#include <nlohmann/json.hpp>

#include "checkpoint/format/strict_json.h"
#include "checkpoint/interchange/safetensors.h"
#include "core/error.h"
#include "engine/huggingface/config.h"

namespace sherd::huggingface {
namespace {

constexpr std::int64_t kMaxFileBytes = 16 << 20;

std::int32_t token_of(const nlohmann::json& value, const std::string& path) {
  const std::uint64_t id =
      value.is_number_unsigned() ? value.get<std::uint64_t>() : ~std::uint64_t{0};
  if (id > std::numeric_limits<std::int32_t>::max()) {
    throw DataError("{}: eos_token_id is {}; a token id or a list of them was expected.", path,
                    value.dump().substr(0, 40));
  }
  return static_cast<std::int32_t>(id);
}

// Models of several parts may say it there alone (text_part.h).
const nlohmann::json* text_part_in(const nlohmann::json& file) {
  const auto found = file.is_object() ? file.find("text_config") : file.end();
  return found == file.end() ? &file : &*found;
}

}  // namespace

std::vector<std::int32_t> end_tokens(checkpoint::Disk& disk, const std::string& folder) {
  for (const std::string name : {"generation_config.json", kConfigName}) {
    const std::string path = folder + "/" + name;
    if (!checkpoint::exists(disk, path)) continue;
    const nlohmann::json file =
        checkpoint::parse_strict(checkpoint::read_followed(disk, path, kMaxFileBytes), path);
    for (const nlohmann::json* part : {&file, text_part_in(file)}) {
      const nlohmann::json found =
          part->is_object() ? part->value("eos_token_id", nlohmann::json()) : nlohmann::json();
      if (found.is_null()) continue;
      if (!found.is_array()) return {token_of(found, path)};
      std::vector<std::int32_t> tokens;
      for (const nlohmann::json& value : found) tokens.push_back(token_of(value, path));
      return tokens;
    }
  }
  return {};
}

}  // namespace sherd::huggingface
