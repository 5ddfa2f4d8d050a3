/// Draws a legal recipe: every key of the field table, then in turn those that rules between keys or the
/// size of a test decide. What is decided later may change what was decided before.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "engine/model/shape.h"
#include "tests/support/random/random_recipe.h"

namespace sherd::testing {

inline std::string quoted(const std::string& text) {
  return '"' + text + '"';
}

/// Leaves out keys that need a state that is sharded, or copies of it.
void leave_what_the_stage_lacks(Settings& settings);
/// Draws how many ranks divide the experts, of a recipe with its data ranks.
void choose_expert_ranks(Settings& settings, Random& random);

class LegalRecipe {
 public:
  LegalRecipe(const test::TempFolder& folder, Random& random) : folder_(folder), random_(random) {}

  Settings make(const std::string& output);

 private:
  std::string value_of(const std::string& key, const std::string& fallback) const;
  void set(std::string_view key, const std::string& value) { settings_[std::string(key)] = value; }
  void set(std::string_view key, std::int64_t value) { set(key, std::to_string(value)); }
  void leave(std::string_view key) { settings_.erase(std::string(key)); }
  void maybe(std::string_view key, const std::string& value);
  void maybe(std::string_view key, std::int64_t value) { maybe(key, std::to_string(value)); }

  // legal_data.cpp
  void text();
  void names(const std::string& output);
  void preferences();
  void distillation();

  // legal_model.cpp
  void shape();
  void block(std::int64_t heads);
  void rotary(std::int64_t heads);
  void experts();
  void attention_scores();
  void latent_attention();
  void growth();
  void adapter();
  model::ModelShape shape_of_model() const;

  // legal_ranks.cpp
  void batch();
  void pipeline();
  void parts_of_models();
  void in_blocks();
  void on_disk();
  void train_apart();
  void servers();
  void compress();
  void predict();

  // legal_training.cpp
  void numbers();
  void precision();
  void eight_bits();
  void saves();

  const test::TempFolder& folder_;
  Random& random_;
  Settings settings_;
  std::int64_t length_ = 0, max_steps_ = 0;
  bool has_adapter_ = false;
};

}  // namespace sherd::testing
