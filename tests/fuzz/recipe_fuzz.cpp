// The text of a recipe: read and resolved, or refused in one sentence.
#include "engine/recipe/fields.h"
#include "engine/recipe/values.h"
#include "tests/fuzz/fuzz.h"

namespace sherd::fuzz {
namespace {

engine::ResolvedRecipe resolved(const std::string& text) {
  return engine::resolve_recipe({.path = "fuzz.yaml", .text = text});
}

void use(const std::string& text) {
  const engine::ResolvedRecipe recipe = resolved(text);
  // What recipe.yaml and every checkpoint hold is read again as it was.
  const engine::ResolvedRecipe again = resolved(recipe.yaml());
  for (const engine::Field& field : engine::recipe_fields()) {
    demand(engine::format_value(field, recipe.values) == engine::format_value(field, again.values),
           field.key);
  }
}

}  // namespace
}  // namespace sherd::fuzz

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string text(reinterpret_cast<const char*>(data), size);
  sherd::fuzz::expect_answer([&] { sherd::fuzz::use(text); });
  return 0;
}
