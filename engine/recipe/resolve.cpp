// From assignments to a recipe: the user's values, defaults, and the order of the other steps.
#include <algorithm>
#include <cctype>

#include "core/error.h"
#include "engine/recipe/adapter_from.h"
#include "engine/recipe/device_rules.h"
#include "engine/recipe/fields.h"
#include "engine/recipe/model_from.h"
#include "engine/recipe/resolution.h"
#include "engine/recipe/segments.h"
#include "engine/recipe/suggest.h"
#include "engine/recipe/their_names.h"
#include "engine/recipe/uses.h"
#include "engine/recipe/values.h"

namespace sherd::engine {
namespace {

constexpr std::string_view kDataPath = "data.path";
constexpr std::string_view kMaxSteps = "training.max_steps";
constexpr std::string_view kNumEpochs = "training.num_epochs";
constexpr std::string_view kShardDegree = "parallelism.data_parallel_shard_degree";

void assign_ranks(Resolution& recipe, std::int64_t ranks) {
  const std::string where = fmt::format("--ranks {}", ranks);
  if (recipe.origin(kShardDegree).kind == Origin::Kind::kSet) {
    // A layout's degrees, as a search prints them, next to the number of ranks that it was for.
    const Recipe::Parallelism& degrees = recipe.values().parallelism;
    std::int64_t together = 1;
    for (const std::int64_t degree :
         {degrees.data_parallel_shard_degree, degrees.data_parallel_replicate_degree,
          degrees.pipeline_parallel_degree, degrees.tensor_parallel_degree,
          degrees.context_parallel_degree}) {
      together *= std::max<std::int64_t>(1, degree);  // 0: not set
    }
    if (together == ranks) return;
    recipe.report(
        fmt::format("{}: {} is also given with --set, and all degrees together make {} "
                    "ranks. Keep one of the two.",
                    where, kShardDegree, together));
    return;
  }
  Assignment assignment;
  assignment.key = kShardDegree;
  assignment.value = {.kind = RawValue::Kind::kPlain, .text = std::to_string(ranks)};
  assignment.origin = {Origin::Kind::kRanks, "--ranks"};
  assignment.where = where;
  recipe.assign(assignment);
}

void read_assignments(Resolution& recipe) {
  const RecipeRequest& request = recipe.request();
  const std::string text = request.text ? *request.text : read_recipe_file(request.path);
  ParsedRecipe parsed = parse_recipe(request.path, text);
  for (std::string& problem : parsed.problems) recipe.report(std::move(problem));
  for (const Assignment& assignment : parsed.assignments) recipe.assign(assignment);
  for (const std::string& set : request.sets) {
    try {
      recipe.assign(parse_set(set));
    } catch (const UsageError& error) {
      recipe.report(error.what());
    }
  }
  if (request.ranks) assign_ranks(recipe, *request.ranks);
}

// Parsed once: plans resolve a recipe with hundreds of settings.
const std::vector<RawValue>& default_values() {
  static const std::vector<RawValue> kValues = [] {
    std::vector<RawValue> values;
    for (const Field& field : recipe_fields()) {
      const bool has_value = field.fallback.kind == Fallback::Kind::kValue;
      values.push_back(has_value ? parse_value(std::string(field.fallback.text),
                                               fmt::format("default of {}", field.key))
                                 : RawValue{});
    }
    return values;
  }();
  return kValues;
}

void fill_defaults(Resolution& recipe) {
  for (std::size_t row = 0; row < recipe_fields().size(); ++row) {
    const Field& field = recipe_fields()[row];
    if (recipe.is_set(field.key) || field.fallback.kind != Fallback::Kind::kValue) continue;
    assign_value(field, default_values()[row], fmt::format("default of {}", field.key),
                 recipe.values());
  }
}

// The number of steps is given directly, or as epochs.
bool is_required(const Resolution& recipe, const Field& field) {
  if (field.key == kMaxSteps) {
    const bool misread = recipe.is_set(kNumEpochs) && recipe.has_problems();
    return recipe.values().training.num_epochs == 0 && !misread;
  }
  if (field.key == kDataPath && (!recipe.request().reads_data || recipe.is_set("data.sources"))) {
    return false;
  }
  return field.fallback.kind == Fallback::Kind::kRequired;
}

void require_all(Resolution& recipe) {
  const std::string& path = recipe.request().path;
  std::vector<const Field*> missing;
  for (const Field& field : recipe_fields()) {
    if (!recipe.is_set(field.key) && is_required(recipe, field)) missing.push_back(&field);
  }
  if (missing.empty()) return;
  if (missing.size() == 1) {
    const Field& field = *missing[0];
    std::string help(field.help);
    help[0] = static_cast<char>(std::tolower(static_cast<unsigned char>(help[0])));
    recipe.report(
        fmt::format("{}: {} is missing: {} Write it below \"{}:\" or pass --set {}=VALUE.", path,
                    field.key, help, field.block(), field.key));
    return;
  }
  std::vector<std::string_view> keys;
  for (const Field* field : missing) keys.push_back(field->key);
  recipe.report(fmt::format("{}: {} are missing. Write them in the recipe or pass --set KEY=VALUE.",
                            path, joined(keys, ", ", " and ")));
}

// Every row has the user's value or its default.
void derive_and_check(Resolution& recipe) {
  derive_values(recipe);
  check_model_from(recipe);
  check_model(recipe);
  if (!recipe.has_problems()) take_their_names(recipe);
  if (!recipe.has_problems()) check_adapter(recipe);
  check_training(recipe);
  check_precision(recipe);
  check_device(recipe);
  if (!recipe.has_problems()) note_unused(recipe);
}

std::string one_below_the_other(const std::vector<std::string>& lines) {
  std::string text;
  for (const std::string& line : lines) text += (text.empty() ? "" : "\n") + line;
  return text;
}

}  // namespace

RecipeErrors::RecipeErrors(std::vector<std::string> lines)
    : UsageError("{}", one_below_the_other(lines)), lines_(std::move(lines)) {}

std::size_t row_of(std::string_view key) {
  const int row = field_index(key);
  SHERD_CHECK(row >= 0, "no field \"{}\"", key);
  return static_cast<std::size_t>(row);
}

Resolution::Resolution(const RecipeRequest& request)
    : request_(request),
      is_set_(recipe_fields().size(), false),
      where_(recipe_fields().size(), request.path) {
  resolved_.origins.resize(recipe_fields().size());
}

Resolution::Resolution(const RecipeRequest& request, const ResolvedRecipe& recipe)
    : Resolution(request) {
  resolved_ = recipe;
  for (std::size_t row = 0; row < is_set_.size(); ++row) {
    const Origin& origin = recipe.origins[row];
    is_set_[row] = origin.is_given();
    if (origin.is_given()) where_[row] = origin.text;
  }
}

void Resolution::choose(std::string_view key) {
  const std::size_t row = row_of(key);
  resolved_.origins[row] = {Origin::Kind::kSet, "chosen"};
  where_[row] = request_.path;
  is_set_[row] = true;
  const Field& field = recipe_fields()[row];
  const auto* number = std::get_if<Member<std::int64_t>>(&field.slot);
  if (!number) return;
  const std::int64_t value = (*number)(values());
  if (!field.range.holds(static_cast<double>(value))) {
    report(fmt::format("{} is {}; {}", key, value, field.expected()));
  }
}

void Resolution::assign(const Assignment& assignment) {
  const std::size_t row = row_of(assignment.key);
  resolved_.origins[row] = assignment.origin;
  where_[row] = assignment.where;
  is_set_[row] = true;
  try {
    assign_value(recipe_fields()[row], assignment.value, assignment.where, resolved_.values);
  } catch (const UsageError& error) {
    report(error.what());
  }
}

void Resolution::put_aside(std::string_view key) {
  const std::size_t row = row_of(key);
  put_aside_.push_back(
      {std::string(key), format_value(recipe_fields()[row], resolved_.values), where_[row]});
  is_set_[row] = false;
  resolved_.origins[row] = {};
}

std::string Resolution::where(std::initializer_list<std::string_view> keys) const {
  std::string where = request_.path;
  for (const bool on_command_line : {false, true}) {
    for (auto key = std::rbegin(keys); key != std::rend(keys); ++key) {
      if (!is_set(*key)) continue;
      if ((origin(*key).kind == Origin::Kind::kFile) != on_command_line)
        where = where_[row_of(*key)];
    }
  }
  return where;
}

ResolvedRecipe Resolution::take() {
  if (has_problems()) throw RecipeErrors(std::move(problems_));
  return std::move(resolved_);
}

const Origin& ResolvedRecipe::origin(std::string_view key) const {
  return origins.at(row_of(key));
}

ResolvedRecipe resolve_recipe(const RecipeRequest& request) {
  Resolution recipe(request);
  read_assignments(recipe);
  derive_names(recipe);
  if (!take_adapter_from(recipe) || !take_model_from(recipe)) return recipe.take();
  take_vocabulary_of_adapter(recipe);
  require_all(recipe);
  // Rules between keys would report values that the user didn't write.
  if (recipe.has_problems()) return recipe.take();
  fill_defaults(recipe);
  derive_and_check(recipe);
  check_adapter_from(recipe);
  ResolvedRecipe resolved = recipe.take();
  if (!request.is_kept) segments_of(resolved);  // each stage's shape is possible
  return resolved;
}

ResolvedRecipe with_epoch_steps(const ResolvedRecipe& recipe, std::int64_t epoch_steps) {
  const std::int64_t num_epochs = recipe.values.training.num_epochs;
  if (num_epochs == 0) return recipe;
  const RecipeRequest request{.path = recipe.values.run.name, .text = {}, .sets = {}, .ranks = {}};
  Resolution changed(request, recipe);
  std::int64_t& max_steps = changed.values().training.max_steps;
  if (changed.is_set(kMaxSteps) && max_steps != epoch_steps) {
    changed.refuse({kNumEpochs, kMaxSteps},
                   "training.num_epochs {} is {} steps of these data, but training.max_steps is "
                   "{}. Leave one of them out, or set num_epochs: 0.",
                   num_epochs, epoch_steps, max_steps);
    return changed.take();
  }
  max_steps = epoch_steps;
  derive_steps(changed);
  check_steps(changed);
  return changed.take();
}

namespace {

void change_and_check(Resolution& recipe, const std::vector<std::string_view>& keys,
                      const std::function<void(Recipe&)>& change) {
  change(recipe.values());
  for (const std::string_view key : keys) recipe.choose(key);
  if (!recipe.has_problems()) derive_and_check(recipe);
}

}  // namespace

std::optional<ResolvedRecipe> with_changes(const ResolvedRecipe& recipe,
                                           const std::vector<std::string_view>& keys,
                                           const std::function<void(Recipe&)>& change) {
  const RecipeRequest request{
      .path = "recipe", .text = {}, .sets = {}, .ranks = {}, .reads_data = false};
  Resolution changed(request, recipe);
  change_and_check(changed, keys, change);
  if (changed.has_problems()) return std::nullopt;
  return changed.take();
}

ResolvedRecipe with_changes_or_errors(const ResolvedRecipe& recipe, const std::string& where,
                                      const std::vector<std::string_view>& keys,
                                      const std::function<void(Recipe&)>& change) {
  const RecipeRequest request{
      .path = where, .text = {}, .sets = {}, .ranks = {}, .reads_data = false, .is_kept = true};
  Resolution changed(request, recipe);
  change_and_check(changed, keys, change);
  return changed.take();
}

}  // namespace sherd::engine
