#include "engine/recipe/written_family.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>

#include "core/error.h"
#include "engine/huggingface/config_writer.h"
#include "engine/recipe/model_from.h"
#include "engine/recipe/model_meaning.h"
#include "engine/recipe/stored.h"
#include "engine/recipe/uses.h"

namespace sherd::engine {
namespace {

using huggingface::Family;

struct Attempt {
  const Family* family = nullptr;
  std::string config;
  std::vector<ModelDifference> differences;

  bool is_exact() const { return differences.empty(); }
  bool lacks_biases_only() const { return std::ranges::all_of(differences, is_missing_bias); }
};

std::optional<Attempt> attempt(const Family& family, const Recipe& recipe, DType dtype) {
  Attempt result{&family, huggingface::config_of(family, compared_values(recipe), dtype), {}};
  try {
    const Recipe read =
        recipe_of(huggingface::parse_config(result.config, fmt::format("{}'s", family.model_type)));
    result.differences = differences(recipe, read);
  } catch (const Error&) {  // no file that could be read back
    return std::nullopt;
  }
  return result;
}

std::vector<Attempt> attempts(const Recipe& recipe, DType dtype) {
  std::vector<Attempt> all;
  for (const Family* family : huggingface::all_families()) {
    if (!family->write) continue;
    if (auto one = attempt(*family, recipe, dtype)) all.push_back(std::move(*one));
  }
  return all;
}

}  // namespace

std::string WrittenFamily::reason() const {
  return fmt::format(
      "no model of Hugging Face's library has {}: {} with this model's other keys (the nearest, "
      "{}, "
      "has {})",
      key, ours, family, theirs);
}

WrittenFamily written_family(const Recipe& recipe, DType dtype) {
  Recipe used = recipe;  // families differ in the scalings that they have, also of factor 1
  if (!use_of("model.rope_scaling")->holds(used)) used.model.rope_scaling = RotaryScaling::kNone;
  const std::vector<Attempt> all = attempts(used, dtype);
  auto found = std::ranges::find_if(all, &Attempt::is_exact);
  const bool is_exact = found != all.end();
  if (!is_exact) found = std::ranges::find_if(all, &Attempt::lacks_biases_only);
  if (found != all.end()) {
    return {.config = found->config,
            .adds_biases = !is_exact,
            .family = std::string(found->family->model_type),
            .key = {},
            .ours = {},
            .theirs = {}};
  }
  const auto nearest = std::ranges::min_element(all, {}, [](const Attempt& one) {
    return std::ranges::count_if(one.differences,
                                 [](const auto& each) { return !is_missing_bias(each); });
  });
  SHERD_CHECK(nearest != all.end(), "no family can be written");
  const auto first = std::ranges::find_if_not(nearest->differences, is_missing_bias);
  return {.config = {},
          .family = std::string(nearest->family->model_type),
          .key = first->key,
          .ours = first->a,
          .theirs = first->b};
}

std::string export_note(const Recipe& recipe) {
  if (!recipe.model.from.empty()) return "";
  const WrittenFamily written = written_family(recipe, DType::kF32);
  if (written.exists()) return "";
  return fmt::format("sherd export --to-hf won't write this model: {}", written.reason());
}

std::string first_difference(const huggingface::ModelConfig& config, const Recipe& recipe,
                             bool missing_biases_are_zero) {
  for (const ModelDifference& one : differences(recipe, recipe_of(config))) {
    if (missing_biases_are_zero && is_missing_bias(one)) continue;
    return fmt::format("{} is {} there and {} in the checkpoint", one.key, one.b, one.a);
  }
  return "";
}

}  // namespace sherd::engine
