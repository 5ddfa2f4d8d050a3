/// A recipe while it is being resolved: the values so far, where each came from, and every problem.
///
/// The steps, in the order of `resolve_recipe` (engine/recipe/resolve.cpp): what a person wrote,
/// defaults, what follows from other values (derive.cpp), the rules between keys (rules_*.cpp). A
/// step reports what is wrong and goes on, so that a person sees all of it at once.
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
  /// Goes on from a recipe that is resolved: what its person set is set, the rest is open again.
  Resolution(const RecipeRequest& request, const ResolvedRecipe& recipe);

  const RecipeRequest& request() const { return request_; }
  Recipe& values() { return resolved_.values; }
  const Recipe& values() const { return resolved_.values; }
  bool is_set(std::string_view key) const { return is_set_[row_of(key)]; }
  const Origin& origin(std::string_view key) const { return resolved_.origins[row_of(key)]; }

  /// What a person wrote; a value that its row refuses is a problem.
  void assign(const Assignment& assignment);
  /// What a program chose in a person's place, in range or not: its member has the value already.
  void choose(std::string_view key);
  /// The value of a rule for a key that nobody set.
  template <class T>
  void derive(std::string_view key, T& member, T value) {
    if (is_set(key)) return;
    member = std::move(value);
    resolved_.origins[row_of(key)] = {Origin::Kind::kDerived, "derived"};
  }

  /// The key follows from the data: its rule comes later.
  void leave_open(std::string_view key) {
    if (!is_set(key)) resolved_.origins[row_of(key)] = {Origin::Kind::kNotYet, "from the data"};
  }

  /// Takes a key that a person set out of the recipe, to be compared later with what it becomes.
  struct PutAside {
    std::string key, text, where;
  };
  void put_aside(std::string_view key);
  const std::vector<PutAside>& all_put_aside() const { return put_aside_; }

  /// What a person should know, a line.
  void note(std::string line) { resolved_.notes.push_back(std::move(line)); }
  /// A problem, beginning with where it is.
  void report(std::string problem) { problems_.push_back(std::move(problem)); }
  /// A problem of several keys. Blames the first of them that a person wrote, the command line
  /// before the file.
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

/// The run's name and folder, before anything is looked for in it.
void derive_names(Resolution& recipe);

/// Values that follow from others. Every row has a legal value before, or none if it is derived.
void derive_values(Resolution& recipe);

/// Of these: max_steps, and the learning rate's steps, which follow from it.
void derive_steps(Resolution& recipe);

/// Rules that hold between keys; one that concerns a key alone is a range in the field table.
void check_model(Resolution& recipe);
/// Of these: what a block is made of, and what differs from layer to layer (rules_block.cpp).
void check_block(Resolution& recipe);
void check_layers(Resolution& recipe);
void check_training(Resolution& recipe);
/// Of these: where the learning rate changes, and which steps are traced.
void check_steps(Resolution& recipe);
void check_pipeline(Resolution& recipe);
void check_tensor_ranks(Resolution& recipe);
void check_context_ranks(Resolution& recipe);
/// And the names of adapter.targets and modules_to_save become our own.
void check_adapter(Resolution& recipe);
void check_precision(Resolution& recipe);

/// The first of what gradients pass through that is f16, or "".
std::string_view first_f16_key(const Recipe& recipe);

}  // namespace sherd::engine
