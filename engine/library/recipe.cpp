#include "sherd/recipe.h"

#include "engine/library/errors.h"
#include "engine/library/recipe_request.h"
#include "engine/recipe/fields.h"
#include "engine/recipe/source.h"
#include "engine/recipe/stored.h"
#include "engine/recipe/suggest.h"

namespace sherd::v0 {

engine::ResolvedRecipe resolved(const Recipe& recipe, bool reads_data) {
  engine::RecipeRequest request = recipe.request().asked;
  request.reads_data = reads_data;
  return engine::resolve_recipe(request);
}

Recipe::Recipe(std::unique_ptr<Request> request) : request_(std::move(request)) {}
Recipe::Recipe(const Recipe& other) : request_(std::make_unique<Request>(*other.request_)) {}
Recipe::Recipe(Recipe&& other) noexcept = default;
Recipe& Recipe::operator=(const Recipe& other) {
  request_ = std::make_unique<Request>(*other.request_);
  return *this;
}
Recipe& Recipe::operator=(Recipe&& other) noexcept = default;
Recipe::~Recipe() = default;

Recipe Recipe::load(const std::string& path) {
  return library::for_user([&] { return parse(engine::read_recipe_file(path), path); });
}

Recipe Recipe::parse(const std::string& yaml, const std::string& name) {
  auto request = std::make_unique<Request>();
  request->asked.path = name;
  request->asked.text = yaml;
  return Recipe(std::move(request));
}

Recipe& Recipe::set(const std::string& key, const std::string& value) {
  request_->asked.sets.push_back(key + "=" + value);
  return *this;
}

Recipe& Recipe::set_ranks(std::int64_t ranks) {
  request_->asked.ranks = ranks;
  return *this;
}

void Recipe::check() const {
  library::for_user([&] { resolved(*this, /*reads_data=*/true); });
}

std::string Recipe::get(const std::string& key) const {
  return library::for_user([&]() -> std::string {
    if (engine::field_index(key) < 0) throw sherd::UsageError("{}", engine::unknown_key(key));
    const engine::RecipeTexts texts =
        engine::printed_values(resolved(*this, /*reads_data=*/true).yaml());
    const auto found = texts.find(key);
    return found == texts.end() ? "" : found->second;
  });
}

std::string Recipe::yaml() const {
  return library::for_user([&] { return resolved(*this, /*reads_data=*/true).yaml(); });
}

std::vector<std::string> Recipe::notes() const {
  return library::for_user([&] { return resolved(*this, /*reads_data=*/true).notes; });
}

}  // namespace sherd::v0
