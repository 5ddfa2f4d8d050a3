/// Walks config.json and collects the recipe's values: what the families' tables and functions use.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "engine/huggingface/config.h"

namespace sherd::huggingface {

/// The settings of the text part of a parsed config.json, those that the whole model says for it
/// included; nothing if it is a model of text alone (text_part.h).
/// Errors   DataError: there is no text_config, or the two disagree.
std::optional<nlohmann::json> text_part(const nlohmann::json& config, const std::string& path);

class ConfigReader {
 public:
  static constexpr std::int64_t kMostLayers = 10'000;

  ConfigReader(const nlohmann::json& config, ModelConfig& result)
      : config_(config), result_(result) {}

  /// The value, or null where it is missing or null. Counts as used.
  const nlohmann::json& at(std::string_view key);
  bool has(std::string_view key);
  /// A number, a truth or a text as YAML; nothing where it is missing or null.
  std::optional<std::string> text(std::string_view key);
  /// The same of a number or a truth; `missing` where it is missing, but nothing where it is null.
  std::optional<std::string> value(std::string_view key,
                                   std::optional<std::string> missing = std::nullopt);
  std::optional<double> number(std::string_view key);
  std::optional<bool> truth(std::string_view key);
  /// How many layers; `missing` where it is missing or null. From `least` to kMostLayers: texts as long
  /// as that are made of it.
  std::int64_t layers(std::string_view key, std::int64_t missing, std::int64_t least = 0);
  /// For keys that have no meaning for us.
  void use(std::string_view key) { used_.insert(std::string(key)); }

  void set(std::string_view key, std::string value, std::string_view from = "model_type");
  void set(std::string_view key, double value, std::string_view from);
  /// The text set so far, or "".
  std::string value_of(std::string_view key) const;

  /// Rotary positions: theta, scaling, the part that is turned. `theta`: the class's default; 0: its versions differ,
  /// so the file must say.
  void rotary(double theta, double fraction = 1.0);
  /// The same of models whose windowed layers have a table of their own: a theta (0: the full layers'),
  /// and no scaling.
  void rotary_by_layer(double theta, double window_theta = 0.0);
  /// A table of rotary frequencies: what stands in rope_scaling, or in rope_parameters.
  void scaling(const nlohmann::json& table, std::string_view from);
  /// head_dim, where it isn't hidden_size / num_attention_heads; `missing`: the class's default, 0:
  /// that quotient.
  void head_width(std::int64_t missing = 0);
  /// layer_types: which layers see sliding_window keys. False if there is no such list. `missing`: the class's window.
  bool window_layers(std::optional<std::string> missing = std::nullopt);
  void window(std::optional<std::string> missing = std::nullopt);

  /// A key of tables of rotary frequencies that only some families have.
  void know_in_rope(std::string_view key) { rope_keys_.emplace_back(key); }
  /// The length that longrope's factors begin above: the class's default, whatever the table says.
  void longrope_length(double missing) { longrope_length_ = missing; }
  /// The run's context may have no more positions than this.
  void limit_positions(std::int64_t most);

  [[noreturn]] void refuse(std::string_view key, const std::string& why) const;

  void read_tables(const Family& family);
  std::vector<std::string> unused() const;

 private:
  std::string scalar(std::string_view key, const nlohmann::json& value) const;
  double number_in(const nlohmann::json& table, std::string_view key, double missing,
                   std::string_view from);
  void set_yarn(const nlohmann::json& table, std::string_view from);
  void set_longrope(const nlohmann::json& table, std::string_view from);
  void require_known(const nlohmann::json& table, std::string_view from,
                     std::initializer_list<std::string_view> known) const;

  const nlohmann::json& config_;
  ModelConfig& result_;
  std::set<std::string> used_;
  std::vector<std::string> rope_keys_;
  std::optional<double> longrope_length_;
};

}  // namespace sherd::huggingface
