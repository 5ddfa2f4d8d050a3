/// Random legal and illegal values for a row of the recipe's field table, as YAML.
///
/// They depend on the row alone (type, range, choices), so a new key is tested automatically.
/// tests/support/random/random_recipe.h handles rules between keys.
#pragma once

#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include "engine/recipe/fields.h"

namespace sherd::testing {

class Random {
 public:
  explicit Random(std::uint64_t seed) : bits_(seed) {}

  /// Uniform in [first, last].
  std::int64_t whole(std::int64_t first, std::int64_t last) {
    return first +
           static_cast<std::int64_t>(bits_() % static_cast<std::uint64_t>(last - first + 1));
  }
  /// Uniform in [first, last).
  double number(double first, double last) {
    return first + (last - first) * static_cast<double>(bits_() >> 11) * 0x1.0p-53;
  }
  bool chance(double probability) { return number(0, 1) < probability; }
  template <class T>
  const T& one_of(const std::vector<T>& items) {
    return items[static_cast<std::size_t>(whole(0, std::ssize(items) - 1))];
  }
  std::string one_of(std::initializer_list<const char*> items) {
    return items.begin()[whole(0, std::ssize(items) - 1)];
  }

 private:
  std::mt19937_64 bits_;
};

/// Whole numbers, and numbers without an upper bound, stay within `reach` of the lower bound.
std::string legal_value(const engine::Field& field, Random& random, double reach = 10);
std::string illegal_value(const engine::Field& field, Random& random);

}  // namespace sherd::testing
