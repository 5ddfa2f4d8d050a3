/// A table of rotary frequencies in config.json: which of its keys are read, and which stand idle in it.
#pragma once

#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

namespace sherd::huggingface {

class ConfigReader;

/// Errors   DataError by ConfigReader::refuse, in the name of the table.
class RotaryTable {
 public:
  /// `table`: an object, or null where there is none; `name`: its key in config.json.
  RotaryTable(ConfigReader& config, const nlohmann::json& table, std::string name);

  const std::string& name() const { return name_; }
  /// rope_type, or what older files call type.
  const std::string& type() const { return type_; }
  /// The key is there, null or not. What is asked for counts as read.
  bool has(const char* key);
  std::optional<double> number(const char* key);  ///< nothing where it is missing or null
  double needed(const char* key);                 ///< an error where it is missing or null
  std::optional<bool> truth(const char* key);
  std::string list(const char* key);  ///< of numbers, as YAML

  /// Refuses keys that neither we nor transformers know; `more`: those of the family's own.
  void require_known(const std::vector<std::string>& more) const;
  /// Keys with values that were not read.
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
