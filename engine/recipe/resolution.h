/// A recipe while it is being resolved: the values so far, where each came from, and every problem.
///
/// The steps, in the order of `resolve_recipe` (engine/recipe/resolve.cpp): what the user wrote,
/// defaults, derived values (derive.cpp), rules between keys (rules_*.cpp). A step reports problems
/// and continues, so that the user sees all of them at once.
#pragma once

#include <fmt/format.h>

#include <initializer_list>
#include <string>
#include <string_view>
#include <vector>

#include "engine/recipe/recipe.h"
#include "engine/recipe/source.h"

namespace sherd::engine {

/// Row of the field table; the key must exist.
std::size_t row_of(std::string_view key);

class Resolution {
 public:
  explicit Resolution(const RecipeRequest& request);
  /// Starts from a resolved recipe: keys that the user set stay set, the rest is open again.
  Resolution(const RecipeRequest& request, const ResolvedRecipe& recipe);

  const RecipeRequest& request() const { return request_; }
  Recipe& values() { return resolved_.values; }
  const Recipe& values() const { return resolved_.values; }
  bool is_set(std::string_view key) const { return is_set_[row_of(key)]; }
  const Origin& origin(std::string_view key) const { return resolved_.origins[row_of(key)]; }

  /// Sets what the user wrote. A value that violates its row is reported.
  void assign(const Assignment& assignment);
  /// Marks a key as set by a program for the user, in range or not. Its member already has the
  /// value.
  void choose(std::string_view key);
  /// Sets a derived value, unless the key is set.
  template <class T>
  void derive(std::string_view key, T& member, T value) {
    if (is_set(key)) return;
    member = std::move(value);
    resolved_.origins[row_of(key)] = {Origin::Kind::kDerived, "derived"};
  }

  /// The key follows from the data and is derived later.
  void leave_open(std::string_view key) {
    if (!is_set(key)) resolved_.origins[row_of(key)] = {Origin::Kind::kNotYet, "from the data"};
  }

  /// A set key that was removed, to be compared with its derived value later.
  struct PutAside {
    std::string key, text, where;
  };
  void put_aside(std::string_view key);
  const std::vector<PutAside>& all_put_aside() const { return put_aside_; }

  /// Adds a note for the user, one line.
  void note(std::string line) { resolved_.notes.push_back(std::move(line)); }
  /// Adds a problem, which begins with its location.
  void report(std::string problem) { problems_.push_back(std::move(problem)); }
  /// Adds a problem of several keys. Its location is the first key that the user wrote; the command
  /// line comes before the file.
  template <class... Args>
  void refuse(std::initializer_list<std::string_view> keys, fmt::format_string<Args...> format,
              Args&&... args) {
    report(where(keys) + ": " + fmt::format(format, std::forward<Args>(args)...));
  }
  bool has_problems() const { return !problems_.empty(); }

  /// Errors   RecipeErrors if there are problems.
  ResolvedRecipe take();

 private:
  std::string where(std::initializer_list<std::string_view> keys) const;

  const RecipeRequest& request_;
  ResolvedRecipe resolved_;
  std::vector<bool> is_set_;
  std::vector<std::string> where_;  ///< of each row, for problems
  std::vector<std::string> problems_;
  std::vector<PutAside> put_aside_;
};

/// As with_changes, but the problems are an error. They begin with `where`.
/// Errors   RecipeErrors
ResolvedRecipe with_changes_or_errors(const ResolvedRecipe& recipe, const std::string& where,
                                      const std::vector<std::string_view>& keys,
                                      const std::function<void(Recipe&)>& change);

/// Derives the run's name and folder, before anything is read from it.
void derive_names(Resolution& recipe);

/// Derives values from others. Before, every row has a legal value, or none if it is derived.
void derive_values(Resolution& recipe);

/// Part of derive_values: max_steps, and the learning rate's steps, which follow from it.
void derive_steps(Resolution& recipe);

/// Rules between keys. Rules for a single key are ranges in the field table.
void check_model(Resolution& recipe);
/// Parts of check_model: the form of a block, and what differs between layers (rules_block.cpp).
void check_block(Resolution& recipe);
void check_layers(Resolution& recipe);
void check_experts(Resolution& recipe);
void check_training(Resolution& recipe);
/// Parts of check_training: texts, weights, stages, validation sets (rules_data.cpp); groups of
/// parameters (rules_optimizer.cpp).
void check_data(Resolution& recipe);
void check_groups(Resolution& recipe);
void check_adafactor(Resolution& recipe);
void check_qk_clip(Resolution& recipe);
void check_router_bias(Resolution& recipe);
/// Part of check_training: state on disk (rules_offload.cpp).
void check_offload(Resolution& recipe);
/// Part of check_training: preferences (rules_preference.cpp).
void check_preference(Resolution& recipe);
/// Part of check_training: a teacher (rules_distillation.cpp).
void check_distillation(Resolution& recipe);
/// Part of check_training: replicas that train apart (rules_diloco.cpp).
void check_diloco(Resolution& recipe);
void check_latent_attention(Resolution& recipe);
/// Part of check_training: parameter servers (rules_servers.cpp).
void check_servers(Resolution& recipe);
/// Part of check_training: steps at which the learning rate changes, and traced steps.
void check_steps(Resolution& recipe);
void check_pipeline(Resolution& recipe);
void check_tensor_ranks(Resolution& recipe);
void check_context_ranks(Resolution& recipe);
/// Also converts the names in adapter.targets and modules_to_save to ours.
void check_adapter(Resolution& recipe);
void check_precision(Resolution& recipe);
/// Each pattern must match a trained parameter.
void check_no_decay(Resolution& recipe);

/// The part of the model's shape that determines names and sizes of its parameters.
model::ModelShape shape_of(const Recipe& recipe);

/// The first f16 key among the types that gradients pass through, or "".
std::string_view first_f16_key(const Recipe& recipe);

}  // namespace sherd::engine
