/// Random recipes that a run accepts, tiny ones, and the same with one thing wrong.
///
/// Every key of the field table is set in about half of them: by its row (random_value.h), or, where
/// rules between keys or the size of a test ask for it, by what stands in random_recipe.cpp.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "tests/support/random/random_value.h"
#include "tests/support/values/temp_folder.h"

namespace sherd::testing {

/// Values by key, as YAML.
using Settings = std::map<std::string, std::string, std::less<>>;
/// The value of a key that is there and has a whole number.
inline std::int64_t whole(const Settings& settings, std::string_view key) {
  return std::stoll(settings.find(key)->second);
}
/// Blocks of keys, as a person writes them.
std::string recipe_text(const Settings& settings);

/// The texts that random recipes name: a few KiB, in every format.
inline constexpr std::int64_t kLargestId = 96;  ///< in ids.bin
void write_recipe_data(const test::TempFolder& folder);

/// `folder` has the texts; output goes to `folder`/`output`.
Settings legal_recipe(const test::TempFolder& folder, const std::string& output, Random& random);

/// A step of the model that a recipe's adapter is for; nothing where it has no adapter. Its checkpoint
/// is what the recipe's checkpoint.init_from names.
std::optional<Settings> base_recipe(const Settings& settings, const test::TempFolder& folder);
std::string base_checkpoint(const test::TempFolder& folder);

/// One thing that makes a legal recipe illegal.
struct Mistake {
  std::string key;    ///< what an error must name; empty: a rule between keys, any of which it may
  Settings settings;  ///< the recipe with the mistake
};
/// A value that its row forbids, a rule between keys broken, or a key that doesn't exist.
Mistake with_mistake(const Settings& legal, Random& random);

/// The same run on another number of ranks at another stage: the global batch stays.
Settings elsewhere(const Settings& settings, Random& random);
/// The same run at another stage on the same ranks: the same bits.
Settings at_another_stage(const Settings& settings, Random& random);

}  // namespace sherd::testing
