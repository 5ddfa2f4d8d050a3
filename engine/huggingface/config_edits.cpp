#include "engine/huggingface/config_edits.h"

#include <nlohmann/json.hpp>
#include <optional>

#include "checkpoint/format/strict_json.h"
#include "core/error.h"
#include "engine/huggingface/config_reader.h"
#include "engine/huggingface/family.h"

namespace sherd::huggingface {
namespace {

using nlohmann::ordered_json;

constexpr const char* kOriginalLength = "original_max_position_embeddings";
constexpr const char* kTokenizerConfig = "tokenizer_config.json";
constexpr const char* kEnd = "eos_token_id";
constexpr const char* kBeginning = "bos_token_id";

ordered_json parsed(std::string_view text, const std::string& path) {
  checkpoint::parse_strict(text, path);
  ordered_json json = ordered_json::parse(text);
  if (!json.is_object()) throw DataError("{}: isn't an object", path);
  return json;
}

std::string printed(const ordered_json& json) {
  return json.dump(2) + "\n";
}

/// The key of config.json that is model.max_seq_length, and what it says.
struct Positions {
  std::string key;
  std::int64_t count = 0;
};

std::optional<Positions> positions_of(const ordered_json& config) {
  const Family* family = find_family(config.value("model_type", std::string()));
  if (!family) return std::nullopt;
  for (const auto keys : family->keys) {
    for (const ConfigKey& key : keys) {
      if (key.ours != "model.max_seq_length") continue;
      const auto found = config.find(std::string(key.theirs));
      if (found != config.end() && found->is_number_integer()) {
        return Positions{std::string(key.theirs), found->get<std::int64_t>()};
      }
      if (key.missing.empty()) return std::nullopt;
      return Positions{std::string(key.theirs), std::stoll(std::string(key.missing))};
    }
  }
  return std::nullopt;
}

std::string type_of(const ordered_json& table) {
  for (const char* key : {"rope_type", "type"}) {
    const auto found = table.find(key);
    if (found != table.end() && found->is_string()) return found->get<std::string>();
  }
  return "default";
}

// Tables of rotary positions, in either spelling, one for each kind of layer or for all.
std::vector<ordered_json*> rotary_tables(ordered_json& config) {
  std::vector<ordered_json*> tables;
  for (const char* key : {"rope_parameters", "rope_scaling"}) {
    const auto table = config.find(key);
    if (table == config.end() || !table->is_object()) continue;
    tables.push_back(&*table);
    for (auto& [name, inner] : table->items()) {
      if (inner.is_object()) tables.push_back(&inner);
    }
  }
  return tables;
}

// One id, or a list of several.
ordered_json as_json(const std::vector<std::int32_t>& ids) {
  if (ids.empty()) return nullptr;
  if (ids.size() == 1) return ids[0];
  return ids;
}

}  // namespace

std::string with_vocab_size(std::string_view config, const std::string& path,
                            std::int64_t vocab_size) {
  ordered_json json = parsed(config, path);
  json["vocab_size"] = vocab_size;
  return printed(json);
}

std::string for_exported_weights(std::string_view config, const std::string& path) {
  ordered_json json = parsed(config, path);
  const Family* family = find_family(json.value("model_type", std::string()));
  const bool is_renamed = family && !family->exported_as.empty();
  const ordered_json before = json;
  json.erase("quantization_config");
  for (const char* key : kPredictionLayers) {
    if (json.contains(key)) json[key] = 0;
  }
  json.erase("auto_map");  // of files with code, which aren't exported
  if (is_renamed) json["model_type"] = family->exported_as;
  return json == before ? std::string(config) : printed(json);
}

std::string with_prediction_layers(std::string_view config, const std::string& path,
                                   std::int64_t layers) {
  ordered_json json = parsed(config, path);
  json[kPredictionLayers[0]] = layers;
  return printed(json);
}

std::string with_positions(std::string_view config, const std::string& path,
                           std::int64_t positions) {
  ordered_json json = parsed(config, path);
  const std::optional<Positions> now = positions_of(json);
  if (!now || now->count >= positions) return std::string(config);
  const auto tables = rotary_tables(json);
  for (const ordered_json* table : tables) {
    const std::string type = type_of(*table);
    if (type == "longrope" || type == "su") return std::string(config);
  }
  for (ordered_json* table : tables) {
    const std::string type = type_of(*table);
    const bool has_length = table->contains(kOriginalLength) || json.contains(kOriginalLength);
    if ((type == "yarn" || type == "llama3") && !has_length) {
      (*table)[kOriginalLength] = now->count;
    }
  }
  json[now->key] = positions;
  return printed(json);
}

std::string tokenizer_with_positions(std::string_view tokenizer_config, std::string_view config,
                                     std::int64_t positions) {
  ordered_json json = parsed(tokenizer_config, kTokenizerConfig);
  const std::optional<Positions> of_model = positions_of(ordered_json::parse(config));
  const auto longest = json.find("model_max_length");
  if (!of_model || longest == json.end() || !longest->is_number_integer() ||
      longest->get<std::int64_t>() != of_model->count || of_model->count >= positions) {
    return std::string(tokenizer_config);
  }
  *longest = positions;
  return printed(json);
}

std::string with_end_tokens(std::string_view config, const std::string& path,
                            const EndTokens& tokens) {
  ordered_json json = parsed(config, path);
  if (!tokens.ids.empty()) json[kEnd] = as_json(tokens.ids);
  if (!tokens.beginning.empty()) json[kBeginning] = as_json(tokens.beginning);
  return printed(json);
}

std::string generation_config(std::string_view generation, std::string_view config,
                              const EndTokens& tokens) {
  ordered_json json = ordered_json::object();
  if (!generation.empty()) {
    json = parsed(generation, "generation_config.json");
  } else {
    const ordered_json model = ordered_json::parse(config);
    for (const char* key : {kBeginning, kEnd, "pad_token_id"}) {
      if (const auto found = model.find(key); found != model.end() && !found->is_null()) {
        json[key] = *found;
      }
    }
  }
  if (!tokens.ids.empty() && json.value(kEnd, ordered_json()) != as_json(tokens.ids)) {
    json[kEnd] = as_json(tokens.ids);
  }
  return printed(json);
}

std::string without_code(std::string_view tokenizer_config) {
  ordered_json json = parsed(tokenizer_config, kTokenizerConfig);
  return json.erase("auto_map") > 0 ? printed(json) : std::string(tokenizer_config);
}

std::string with_eos_token(std::string_view tokenizer_config, const std::string& token) {
  ordered_json json = tokenizer_config.empty() ? ordered_json::object()
                                               : parsed(tokenizer_config, kTokenizerConfig);
  json["eos_token"] = token;
  return printed(json);
}

}  // namespace sherd::huggingface
