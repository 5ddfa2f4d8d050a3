/// A table of rotary frequencies in config.json: which of its keys are read, and which have no
/// effect.
#pragma once

#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

namespace sherd::huggingface {

class ConfigReader;

/// Errors   DataError from ConfigReader::refuse, naming the table.
class RotaryTable {
 public:
  /// `table`: an object, or null if there is none; `name`: its key in config.json.
  RotaryTable(ConfigReader& config, const nlohmann::json& table, std::string name);

  const std::string& name() const { return name_; }
  /// rope_type, which older files name type.
  const std::string& type() const { return type_; }
  /// Whether the key exists, null or not. Keys passed to these functions count as read.
  bool has(const char* key);
  std::optional<double> number(const char* key);  ///< nothing if it is missing or null
  double needed(const char* key);                 ///< an error if it is missing or null
  std::optional<bool> truth(const char* key);
  std::string list(const char* key);  ///< of numbers, as YAML

  /// Refuses keys unknown to both Sherd and transformers; `more`: the family's own keys.
  void require_known(const std::vector<std::string>& more) const;
  /// Keys whose values were not read.
  std::vector<std::string> idle(const std::vector<std::string>& more) const;

 private:
  const nlohmann::json& value(const char* key);
  [[noreturn]] void refuse(const std::string& why) const;

  ConfigReader& config_;
  const nlohmann::json& table_;
  std::string name_, type_;
  std::set<std::string> read_;
};

}  // namespace sherd::huggingface
