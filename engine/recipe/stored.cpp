#include "engine/recipe/stored.h"

#include <vector>

#include "core/error.h"
#include "engine/recipe/fields.h"
#include "engine/recipe/source.h"
#include "engine/recipe/values.h"

namespace sherd::engine {
namespace {

/// `raw` as this program would print it.
std::string text_of(const Field& field, const RawValue& raw) {
  Recipe scratch;
  try {
    assign_value(field, raw, std::string(field.key), scratch);
    return format_value(field, scratch);
  } catch (const UsageError&) {
    return raw.describe();
  }
}

/// Never changes: the ordinals in existing checkpoints. New choices never appear here.
struct Ordinals {
  std::string_view key;
  std::vector<std::string_view> texts;
};
const Ordinals kOrdinals[] = {
    {"optimizer.type", {"adamw", "adam", "sgd", "lion", "lamb", "lars", "muon"}},
    {"mixed_precision.param_dtype", {"f32", "bf16", "f16"}},
};

}  // namespace

RecipeTexts compared_values(const Recipe& recipe) {
  RecipeTexts texts;
  for (const Field& field : recipe_fields()) {
    if (field.on_resume == OnResume::kFree) continue;
    texts.emplace(field.key, format_value(field, recipe));
  }
  return texts;
}

RecipeTexts printed_values(const std::string& yaml) {
  RecipeTexts texts;
  try {
    for (const Assignment& assignment : parse_recipe("recipe", yaml).assignments) {
      const int row = field_index(assignment.key);
      const Field& field = recipe_fields()[static_cast<std::size_t>(row)];
      texts[assignment.key] = text_of(field, assignment.value);
    }
  } catch (const UsageError&) {
    texts.clear();
  }
  return texts;
}

std::optional<std::string> default_value(std::string_view key) {
  const int row = field_index(key);
  if (row < 0) return std::nullopt;
  const Field& field = recipe_fields()[static_cast<std::size_t>(row)];
  if (field.fallback.kind != Fallback::Kind::kValue) return std::nullopt;
  return text_of(field, parse_value(std::string(field.fallback.text), std::string(key)));
}

std::optional<std::string> text_of_ordinal(std::string_view key, std::int64_t ordinal) {
  for (const Ordinals& known : kOrdinals) {
    if (known.key != key) continue;
    if (ordinal < 0 || ordinal >= static_cast<std::int64_t>(known.texts.size())) break;
    return std::string(known.texts[static_cast<std::size_t>(ordinal)]);
  }
  return std::nullopt;
}

}  // namespace sherd::engine
