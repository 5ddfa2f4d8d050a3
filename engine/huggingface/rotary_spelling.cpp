#include "engine/huggingface/rotary_spelling.h"

#include <nlohmann/json.hpp>
#include <string>
#include <utility>

namespace sherd::huggingface {
namespace {

using nlohmann::ordered_json;

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

// transformers 4 has theta and the rotated part outside the table of a scaling.
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

// Whether `rope_scaling`, which counts first, says something else than the table.
bool scaling_differs(const ordered_json& config, const Family& family, const ordered_json& table) {
  const auto scaling = config.find("rope_scaling");
  if (scaling == config.end() || !scaling->is_object() || scaling->empty()) return false;
  ordered_json same = config;
  add_old_spelling(same, family, table);
  return same["rope_scaling"] != *scaling;
}

// The table that a reader of `rope_scaling` has: the other table's theta doesn't count.
ordered_json table_of_scaling(const ordered_json& config, const Family& family) {
  ordered_json table;
  for (const auto& [key, old] : {std::pair("rope_theta", family.old_theta),
                                 std::pair("partial_rotary_factor", family.old_fraction)}) {
    if (const auto found = config.find(std::string(old)); found != config.end()) {
      table[key] = *found;
    }
  }
  for (const auto& [key, value] : config["rope_scaling"].items()) {
    table[key == "type" ? "rope_type" : key] = value;
  }
  constexpr const char* kOriginal = "original_max_position_embeddings";
  if (!table.contains(kOriginal) && config.contains(kOriginal)) {
    table[kOriginal] = config[kOriginal];
  }
  return table;
}

}  // namespace

void add_both_spellings(ordered_json& config, const Family& family) {
  const auto parameters = config.find("rope_parameters");
  if (parameters != config.end() && parameters->is_object()) {
    ordered_json table = *parameters;
    if (!table.contains("full_attention")) {
      if (scaling_differs(config, family, table)) table = table_of_scaling(config, family);
      config["rope_parameters"] = table;
      return add_old_spelling(config, family, table);
    }
    if (scaling_differs(config, family, table["full_attention"])) {
      table["full_attention"].update(config["rope_scaling"]);
    }
    config["rope_parameters"] = table;
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

}  // namespace sherd::huggingface
