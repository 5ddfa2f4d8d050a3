#include "engine/huggingface/config_writer.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>

#include "checkpoint/format/strict_json.h"
#include "core/error.h"

namespace sherd::huggingface {
namespace {

using nlohmann::ordered_json;

std::string_view torch_name(DType dtype) {
  switch (dtype) {
    case DType::kBF16:
      return "bfloat16";
    case DType::kF16:
      return "float16";
    default:
      return "float32";
  }
}

void set_types(ordered_json& config, const Family& family, DType dtype) {
  config["architectures"] = {family.architecture};
  config["dtype"] = torch_name(dtype);
  config["torch_dtype"] = torch_name(dtype);
}

bool is_default(const ordered_json& table) {
  return table.value("rope_type", table.value("type", std::string("default"))) == "default";
}

// Phi-3 of transformers 4 takes a table of its type and two lists, and nothing else in it.
void spell_longrope(ordered_json& config, ordered_json& scaling) {
  scaling.erase("rope_type");
  scaling["type"] = "longrope";
  if (const auto length = scaling.find("original_max_position_embeddings");
      length != scaling.end()) {
    config["original_max_position_embeddings"] = *length;
    scaling.erase("original_max_position_embeddings");
  }
}

// transformers 4 has theta and the turned part beside the table of a scaling.
void add_old_spelling(ordered_json& config, const Family& family, const ordered_json& table) {
  ordered_json scaling = table;
  for (const auto& [key, old] : {std::pair("rope_theta", family.old_theta),
                                 std::pair("partial_rotary_factor", family.old_fraction)}) {
    if (!table.contains(key)) continue;
    config[std::string(old)] = table[key];
    scaling.erase(key);
  }
  if (is_default(table)) {
    config["rope_scaling"] = nullptr;
    return;
  }
  if (table.value("rope_type", std::string()) == "longrope") spell_longrope(config, scaling);
  config["rope_scaling"] = std::move(scaling);
}

void add_both_spellings(ordered_json& config, const Family& family) {
  const auto parameters = config.find("rope_parameters");
  if (parameters != config.end() && parameters->is_object()) {
    const ordered_json table = *parameters;
    if (!table.contains("full_attention")) return add_old_spelling(config, family, table);
    add_old_spelling(config, family, table["full_attention"]);
    if (table.contains("sliding_attention") && table["sliding_attention"].contains("rope_theta")) {
      config["rope_local_base_freq"] = table["sliding_attention"]["rope_theta"];
    }
    return;
  }
  // transformers 5 reads the old spelling of two tables itself.
  const std::string theta(family.old_theta), fraction(family.old_fraction);
  if (!config.contains(theta) || family.two_rotary_tables) return;
  ordered_json table = {{"rope_type", "default"}, {"rope_theta", config[theta]}};
  if (const auto scaling = config.find("rope_scaling");
      scaling != config.end() && scaling->is_object()) {
    for (const auto& [key, value] : scaling->items())
      table[key == "type" ? "rope_type" : key] = value;
  }
  if (config.contains(fraction)) table["partial_rotary_factor"] = config[fraction];
  config["rope_parameters"] = std::move(table);
}

std::string text_of(const ordered_json& config) {
  return config.dump(2) + "\n";
}

// A value of a recipe as JSON: numbers and truths are spelled alike, all else is a text.
ordered_json scalar(const std::string& value) {
  ordered_json parsed = ordered_json::parse(value, nullptr, false);
  return parsed.is_number() || parsed.is_boolean() ? parsed : ordered_json(value);
}

}  // namespace

std::string updated_config(std::string_view kept, const std::string& path, DType dtype) {
  ordered_json config = checkpoint::parse_strict_ordered(kept, path);
  try {
    const Family* family = find_family(config.value("model_type", std::string()));
    if (!family) throw DataError("{}: its model_type isn't known", path);
    set_types(config, *family, dtype);
    add_both_spellings(config, *family);
  } catch (const ordered_json::exception&) {
    throw DataError("{}: a value inside of rope_parameters is of another kind than expected", path);
  }
  return text_of(config);
}

std::string config_of(const Family& family, const std::map<std::string, std::string>& values,
                      DType dtype) {
  ordered_json config = {{"model_type", family.model_type}};
  set_types(config, family, dtype);
  const auto value_of = [&](std::string_view key) -> std::string {
    const auto found = values.find(std::string(key));
    return found == values.end() ? "" : found->second;
  };
  for (const auto keys : family.keys) {
    for (const ConfigKey& key : keys) config[std::string(key.theirs)] = scalar(value_of(key.ours));
  }
  for (const ConfigWord& word : family.words) {
    const std::string key(word.theirs);
    if (!config.contains(key) && value_of(word.ours) == word.value)
      config[key] = scalar(std::string(word.word));
  }
  const bool own_names = config.contains("n_embd");
  config[own_names ? "n_inner" : "intermediate_size"] = scalar(value_of("model.ffn_hidden_size"));
  if (!own_names) {
    config["num_key_value_heads"] = scalar(value_of("model.num_kv_heads"));
    config["rope_theta"] = scalar(value_of("model.rope_theta"));
    add_both_spellings(config, family);
  }
  for (const char* token : {"bos_token_id", "eos_token_id"}) config[token] = nullptr;
  return text_of(config);
}

}  // namespace sherd::huggingface
