// Notes about keys that the user set and that have no effect.
#include "engine/recipe/fields.h"
#include "engine/recipe/model_from.h"
#include "engine/recipe/uses.h"
#include "engine/recipe/values.h"

namespace sherd::engine {
namespace {

// A value from config.json wasn't requested by the recipe.
bool is_models(const Recipe& r, std::string_view key) {
  return !r.model.from.empty() && says_which_model(key);
}

bool is_as_without(const Resolution& recipe, const Field& field) {
  Resolution without = recipe;
  without.put_aside(field.key);
  if (field.fallback.kind == Fallback::Kind::kValue) {
    const RawValue value = parse_value(std::string(field.fallback.text), std::string(field.key));
    assign_value(field, value, std::string(field.key), without.values());
  }
  derive_values(without);
  return format_value(field, without.values()) == format_value(field, recipe.values());
}

// A key, and the key that replaces it if both are given.
constexpr std::pair<std::string_view, std::string_view> kReplaced[] = {
    {"lr_scheduler.warmup_ratio", "lr_scheduler.warmup_steps"},
    {"lr_scheduler.wsd_decay_ratio", "lr_scheduler.wsd_decay_steps"},
    {"lr_scheduler.wsd_decay_tokens", "lr_scheduler.wsd_decay_steps"},
};

}  // namespace

void note_unused(Resolution& recipe) {
  if (recipe.request().is_kept) return;
  const auto note = [&recipe](const Field& field, std::string_view when) {
    recipe.note(fmt::format("{}: {} has no effect: it is used {}.", recipe.origin(field.key).text,
                            field.key, when));
  };
  for (const Field& field : recipe_fields()) {
    const Use* use = use_of(field.key);
    if (!use || !recipe.origin(field.key).is_given() || use->holds(recipe.values())) continue;
    if (is_models(recipe.values(), field.key) || is_as_without(recipe, field)) continue;
    note(field, use->when);
  }
  for (const auto& [key, other] : kReplaced) {
    const Field& field = recipe_fields()[row_of(key)];
    const Use* use = use_of(key);
    if (!recipe.origin(key).is_given() || !recipe.origin(other).is_given()) continue;
    if ((use && !use->holds(recipe.values())) || is_as_without(recipe, field)) continue;
    note(field, fmt::format("if {} isn't set", other.substr(other.find('.') + 1)));
  }
}

bool validates_by_path(const Recipe& recipe) {
  return !recipe.data.validation_path.empty() || recipe.data.validation_fraction > 0.0;
}

bool validates(const Recipe& recipe) {
  return validates_by_path(recipe) || !recipe.data.validation_sets.empty();
}

}  // namespace sherd::engine
