/// Reads config.json and collects the recipe's values; used by the families' tables and functions.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "engine/huggingface/config.h"

namespace sherd::huggingface {

/// Settings that count layers which only predict further tokens. They aren't read or exported.
inline constexpr const char* kPredictionLayers[] = {"num_nextn_predict_layers", "num_mtp_layers"};

/// The settings of the text part of a parsed config.json, including those given for the whole
/// model; nothing for a text-only model (text_part.h).
/// Errors   DataError: there is no text_config, or the two disagree.
std::optional<nlohmann::json> text_part(const nlohmann::json& config, const std::string& path);

class RotaryTable;

/// A class's defaults for rotary positions.
struct RotaryClass {
  double theta = 10000.0;  ///< 0: versions of transformers differ, so the file must give it
  /// Part of a head that is rotated. Nothing: whole heads, whatever the file says.
  std::optional<double> fraction{};
  std::optional<double> length{};  ///< original context length, overrides the table's
  bool longrope_alone = false;     ///< su and yarn are also names of longrope
};

class ConfigReader {
 public:
  static constexpr std::int64_t kMostLayers = 10'000;

  ConfigReader(const nlohmann::json& config, ModelConfig& result)
      : config_(config), result_(result) {}

  /// The value, or null where it is missing or null. Counts as used.
  const nlohmann::json& at(std::string_view key);
  bool has(std::string_view key);
  /// Whether the key exists and is null.
  bool is_null(std::string_view key);
  /// A number, a bool or a text as YAML; nothing if it is missing or null.
  std::optional<std::string> text(std::string_view key);
  /// The same for a number or a bool; `missing` if it is missing, but nothing if it is null.
  std::optional<std::string> value(std::string_view key,
                                   std::optional<std::string> missing = std::nullopt);
  std::optional<double> number(std::string_view key);
  std::optional<bool> truth(std::string_view key);
  /// A number of layers; `missing` if it is missing or null. From `least` to kMostLayers, since
  /// texts of that length are built from it.
  std::int64_t layers(std::string_view key, std::int64_t missing, std::int64_t least = 0);
  /// Marks a key without meaning for Sherd as used.
  void use(std::string_view key) { used_.insert(std::string(key)); }

  void set(std::string_view key, std::string value, std::string_view from = "model_type");
  void set(std::string_view key, double value, std::string_view from);
  /// The text set so far, or "".
  std::string value_of(std::string_view key) const;

  /// Rotary positions: theta, scaling, the part that is rotated.
  void rotary(const RotaryClass& of_class = {});
  /// The same for models whose windowed layers have their own table, without scaling.
  /// `window_theta`: the class's theta for these layers if the file gives none.
  /// `window_is_class_s`: only the class sets it, and versions of transformers differ in whether
  /// the full layers' key applies to windowed layers.
  void rotary_by_layer(const RotaryClass& of_class, double window_theta, bool window_is_class_s);
  /// head_dim, if it isn't hidden_size / num_attention_heads. `missing`: the class's default; 0:
  /// that quotient.
  void head_width(std::int64_t missing = 0);
  /// For classes whose heads always have the width hidden_size / num_attention_heads.
  void plain_heads();
  /// layer_types as a mask with 1 for layers with a sliding window; nothing if there is no such
  /// list.
  std::optional<std::string> layer_types();
  /// The layers of `mask` have a window of sliding_window keys; `missing`: the class's window.
  void windows(const std::string& mask, std::optional<std::string> missing = std::nullopt);
  /// All layers have a window of sliding_window keys, if that key has a value.
  void window(std::optional<std::string> missing = std::nullopt);

  /// Accepts a key in tables of rotary frequencies that only some families have.
  void know_in_rope(std::string_view key) { rope_keys_.emplace_back(key); }
  /// Notes how many prediction layers (kPredictionLayers) the folder has: layers that aren't read.
  void prediction_layers();
  /// The run's context may have no more positions than this; `why`: what happens beyond them.
  void limit_positions(std::int64_t most, std::string why);

  [[noreturn]] void refuse(std::string_view key, const std::string& why) const;

  void read_tables(const Family& family);
  std::vector<std::string> unused() const;

 private:
  /// Lengths that frequency scaling depends on: the original context and the longest.
  struct Length {
    double original = 0.0, longest = 0.0;
    bool by_layer = false;
  };

  std::string scalar(std::string_view key, const nlohmann::json& value) const;
  const nlohmann::json& table(std::string_view key);
  /// Nothing if the key is missing; null is refused.
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
