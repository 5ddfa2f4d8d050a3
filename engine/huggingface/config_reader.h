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

class RotaryTable;

/// What a class makes of rotary positions where the file leaves it open.
struct RotaryClass {
  double theta = 10000.0;  ///< 0: versions of transformers differ, so the file must say
  std::optional<double>
      fraction{};  ///< the part of a head that is turned; nothing: whole heads, whatever the file says
  std::optional<double> length{};  ///< of the first training, whatever the table says
  bool longrope_alone = false;     ///< su and yarn are names of it, too
};

class ConfigReader {
 public:
  static constexpr std::int64_t kMostLayers = 10'000;

  ConfigReader(const nlohmann::json& config, ModelConfig& result)
      : config_(config), result_(result) {}

  /// The value, or null where it is missing or null. Counts as used.
  const nlohmann::json& at(std::string_view key);
  bool has(std::string_view key);
  /// There, and null.
  bool is_null(std::string_view key);
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

  /// Rotary positions: theta, scaling, the part that is turned.
  void rotary(const RotaryClass& of_class = {});
  /// The same of models whose windowed layers have a table of their own, without scaling, and with a theta that
  /// the file may leave to the class. `window_is_class_s`: there it is the full layers' key that versions of
  /// transformers read differently.
  void rotary_by_layer(const RotaryClass& of_class, double window_theta, bool window_is_class_s);
  /// head_dim, where it isn't hidden_size / num_attention_heads; `missing`: the class's default, 0:
  /// that quotient.
  void head_width(std::int64_t missing = 0);
  /// Of classes whose heads are hidden_size / num_attention_heads wide, whatever the file says.
  void plain_heads();
  /// layer_types: a mask with 1 for layers that see sliding_window keys; nothing if there is no such list.
  std::optional<std::string> layer_types();
  /// The layers of `mask` see sliding_window keys; `missing`: the class's window.
  void windows(const std::string& mask, std::optional<std::string> missing = std::nullopt);
  /// All layers see sliding_window keys, if there is such a number.
  void window(std::optional<std::string> missing = std::nullopt);

  /// A key of tables of rotary frequencies that only some families have.
  void know_in_rope(std::string_view key) { rope_keys_.emplace_back(key); }
  /// The run's context may have no more positions than this; `why`: what happens beyond them.
  void limit_positions(std::int64_t most, std::string why);

  [[noreturn]] void refuse(std::string_view key, const std::string& why) const;

  void read_tables(const Family& family);
  std::vector<std::string> unused() const;

 private:
  /// Where frequencies are counted from: the length of the first training, and the longest.
  struct Length {
    double original = 0.0, longest = 0.0;
    bool by_layer = false;
  };

  std::string scalar(std::string_view key, const nlohmann::json& value) const;
  const nlohmann::json& table(std::string_view key);
  /// Nothing where the key is missing; null is refused.
  std::optional<double> present_number(std::string_view key);
  double turned_part(RotaryTable& rope, const RotaryClass& of_class);
  Length original_length(RotaryTable& rope, const RotaryClass& of_class);
  double factor_or_ratio(RotaryTable& rope);
  void scaling(RotaryTable& rope, const RotaryClass& of_class);
  void set_length(const RotaryTable& rope);
  void set_llama3(RotaryTable& rope);
  void set_yarn(RotaryTable& rope);
  void set_longrope(RotaryTable& rope);
  void set_attention_factor(RotaryTable& rope, std::optional<double> otherwise);

  const nlohmann::json& config_;
  ModelConfig& result_;
  std::set<std::string> used_;
  std::vector<std::string> rope_keys_;
  Length rope_length_;
};

}  // namespace sherd::huggingface
