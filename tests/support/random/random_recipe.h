/// Tiny random recipes that a run accepts, and the same recipes with one mistake.
///
/// Every key of the field table is set in about half of them. Its row determines the value
/// (random_value.h), or LegalRecipe (legal_recipe.h) if rules between keys or the size of a test
/// require it.
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
/// The value of an existing key with a whole number.
inline std::int64_t whole(const Settings& settings, std::string_view key) {
  return std::stoll(settings.find(key)->second);
}
/// The recipe's text, in blocks of keys as users write them.
std::string recipe_text(const Settings& settings);

/// The data of random recipes: a few KiB, in every format.
inline constexpr std::int64_t kLargestId = 96;  ///< in ids.bin
void write_recipe_data(const test::TempFolder& folder);

/// `folder` has the texts; output goes to `folder`/`output`.
Settings legal_recipe(const test::TempFolder& folder, const std::string& output, Random& random);

/// A recipe for one step of the adapter's base model; nothing if `settings` has no adapter. The
/// recipe's checkpoint.init_from names the checkpoint of that run.
std::optional<Settings> base_recipe(const Settings& settings, const test::TempFolder& folder);
std::string base_checkpoint(const test::TempFolder& folder);

/// One thing that makes a legal recipe illegal.
struct Mistake {
  std::string key;    ///< the error must name it; empty: any key of a rule between keys
  Settings settings;  ///< the recipe with the mistake
};
/// A value that its row forbids, a rule between keys broken, or a key that doesn't exist.
Mistake with_mistake(const Settings& legal, Random& random);

/// The same run on another number of ranks at another stage, with the same global batch.
Settings elsewhere(const Settings& settings, Random& random);
/// The same run at another stage on the same ranks; results are bit-identical.
Settings at_another_stage(const Settings& settings, Random& random);

}  // namespace sherd::testing
