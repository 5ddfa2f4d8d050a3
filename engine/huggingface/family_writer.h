/// Writes config.json of a model that a recipe describes; used by the families' `write` functions.
/// The counterpart of config_reader.h.
///
/// A function writes only what its class in transformers reads. Settings unknown to the class are
/// left out. The file then describes a different model, so the caller must read it back and
/// compare.
#pragma once

#include <cstdint>
#include <map>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>

#include "engine/huggingface/family.h"

namespace sherd::huggingface {

/// The model keys of a recipe, as YAML, by their names ("model.num_layers").
using ModelTexts = std::map<std::string, std::string>;

class FamilyWriter {
 public:
  FamilyWriter(const Family& family, const ModelTexts& values, nlohmann::ordered_json& config)
      : family_(family), values_(values), config_(config) {}

  /// Writes sizes, words and the rest of the family's tables, then calls its `write`.
  void write();

  // Values of the recipe. A text without its quotes; 0 and false for a missing key.
  std::string text(std::string_view ours) const;
  double number(std::string_view ours) const;
  std::int64_t whole(std::string_view ours) const;
  bool truth(std::string_view ours) const;

  // Values of the file.
  void set(std::string_view theirs, std::int64_t value);
  void set(std::string_view theirs, int value) { set(theirs, std::int64_t{value}); }
  void set(std::string_view theirs, double value);
  void set(std::string_view theirs, bool value);
  void set_null(std::string_view theirs);
  void set_text(std::string_view theirs, std::string_view value);
  /// A list of the same text for each layer.
  void set_layers(std::string_view theirs, std::string_view value);

  /// Whether hidden_size is a multiple of num_attention_heads, as some classes of transformers 5
  /// require.
  bool heads_divide_width() const;
  void kv_heads();
  /// head_dim, even if it is hidden_size / num_attention_heads.
  void head_width();
  /// attention_bias: biases of query, key, value and output.
  void attention_bias();
  /// The same, and mlp_bias.
  void biases();

  /// rope_parameters, also in the spelling of transformers 4.
  void rotary();
  /// The same for a class that rotates a part of each head.
  void rotary_of_part();
  /// The same for a class whose windowed layers have their own table.
  void rotary_by_layer();

  bool has_windows() const;
  bool is_windowed(std::int64_t layer) const;
  bool is_turned(std::int64_t layer) const;
  /// A list with 1 or 0 for each layer: whether it rotates queries and keys.
  void turned_layers(std::string_view theirs);
  bool has_experts(std::int64_t layer) const;
  bool has_experts_everywhere() const;
  /// A list of the layers without experts, by their numbers.
  void dense_layers(std::string_view theirs);
  void layers_with_experts(std::string_view theirs);
  /// sliding_window of a class in which all layers have a window, or none has.
  void window();
  /// sliding_window and layer_types.
  void window_layers();

 private:
  void set_numbers(std::string_view theirs, bool with_experts);
  bool is_one_at(std::string_view pattern, std::int64_t layer) const;
  nlohmann::ordered_json rotary_table() const;
  void add_longrope(nlohmann::ordered_json& table) const;
  bool has_longrope_of_lengths() const;
  void set_rotary(bool with_part);

  const Family& family_;
  const ModelTexts& values_;
  nlohmann::ordered_json& config_;
};

}  // namespace sherd::huggingface
