/// The field table: every key of a recipe is one row, which contains everything about the key.
///
/// The table drives parsing, defaults, range checks, suggestions, `sherd recipe --help-fields` and
/// docs/recipe.md. A new key needs a member of `Recipe`, one row here and the code that uses it.
#pragma once

#include <array>
#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <variant>
#include <vector>

#include "engine/recipe/recipe.h"

namespace sherd::engine {

/// Accesses the member of `Recipe` that a row describes.
template <class T>
using Member = T& (*)(Recipe&);
/// An enumeration member, read and set by the index of its enumerator.
struct ChoiceMember {
  int (*get)(Recipe&);
  void (*set)(Recipe&, int);
};
using Slot = std::variant<Member<std::int64_t>, Member<std::uint64_t>, Member<double>, Member<bool>,
                          Member<std::string>, ChoiceMember, Member<std::array<double, 2>>,
                          Member<std::vector<double>>, Member<std::vector<std::string>>,
                          Member<std::optional<StepRange>>, Member<std::vector<DataSource>>,
                          Member<std::vector<DataStage>>, Member<std::vector<ValidationSet>>,
                          Member<std::vector<TaskFile>>, Member<std::vector<ParameterGroup>>>;

/// The value of a key that isn't set.
struct Fallback {
  enum class Kind { kValue, kRequired, kDerived };
  Kind kind = Kind::kRequired;
  std::string_view text{};  ///< kValue: the value as YAML; kDerived: the rule in words
};

/// Numbers (each of them, in a list). Integers are counts, so every one has an upper bound that
/// keeps products of a few of them inside 63 bits.
struct Range {
  double min = -std::numeric_limits<double>::infinity();
  double max = std::numeric_limits<double>::infinity();
  bool above_min = false;  ///< min itself is excluded
  bool below_max = false;  ///< max itself is excluded
  /// The computation uses it as a float. Rounded to float, a number must also be in range, finite
  /// and not subnormal (0 is allowed).
  bool as_float = false;

  bool holds(double value) const;
  /// In range as a double, but not as the float used in computation.
  bool lost_as_float(double value) const { return as_float && contains(value) && !holds(value); }
  std::string text() const;  ///< "at least 1", "from 0 to below 1", "" if everything is allowed

 private:
  bool contains(double value) const {
    return (above_min ? value > min : value >= min) && (below_max ? value < max : value <= max);
  }
};

/// What a resume does if the recipe and the checkpoint differ in a key.
enum class OnResume {
  kMustMatch,  ///< refuses: it would be another run
  kMayChange,  ///< continues with the recipe's value, and prints both
  kFree,       ///< continues silently: the key doesn't affect what is trained
};

struct Field {
  std::string_view key;  ///< "block.name"
  Slot slot{};
  OnResume on_resume = OnResume::kMustMatch;
  Fallback fallback{};
  Range range{};
  std::vector<std::string_view> choices{};  ///< in the order of the enumerators
  std::string_view help{};
  /// Replaces the range's own words in errors: "stages are 0, 1, 2 and 3".
  std::string_view demand{};

  std::string_view block() const { return key.substr(0, key.find('.')); }
  std::string_view name() const { return key.substr(key.find('.') + 1); }
  std::string type() const;              ///< "whole number", "layernorm | rmsnorm", ...
  std::string_view resume_text() const;  ///< "must match", "may change" or "free"
  std::string expected() const;          ///< "expected a whole number from 1 to 64", for errors
};

/// In the order of the blocks in docs/recipe.md.
const std::vector<Field>& recipe_fields();
/// Row of a key, or -1.
int field_index(std::string_view key);
/// The blocks in the table's order, with one line of help each.
struct Block {
  std::string_view name;
  std::string_view help;
};
const std::vector<Block>& recipe_blocks();

}  // namespace sherd::engine
