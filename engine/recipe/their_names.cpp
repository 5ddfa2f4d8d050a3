#include "engine/recipe/their_names.h"

#include <fnmatch.h>

#include <algorithm>

#include "engine/huggingface/weight_map.h"
#include "engine/model/parameters.h"
#include "engine/recipe/model_from.h"
#include "engine/recipe/mup.h"
#include "engine/recipe/suggest.h"
#include "engine/recipe/written_family.h"

namespace sherd::engine {
namespace {

using Names = std::vector<std::string>;

bool has_match(const Names& patterns, const std::string& name) {
  return std::ranges::any_of(patterns, [&](const std::string& pattern) {
    return fnmatch(pattern.c_str(), name.c_str(), 0) == 0;
  });
}

// A name of ours, and their names for its parts.
struct Translation {
  std::string ours, in_all_blocks;
  Names theirs;
};

Translation translation_of(const huggingface::Family& family, const std::string& ours) {
  constexpr std::string_view kBlock = "block.";
  const std::size_t end = ours.rfind('.');
  std::string module = ours.substr(0, end), number;
  if (module.starts_with(kBlock)) {
    const std::size_t dot = module.find('.', kBlock.size());
    number = module.substr(kBlock.size(), dot - kBlock.size());
    module = "block.{}" + module.substr(dot);
  }
  Translation found{ours, ours, {}};
  if (!number.empty()) found.in_all_blocks.replace(kBlock.size(), number.size(), "*");
  for (const huggingface::Module* row : huggingface::modules_of(family, module)) {
    std::string theirs(row->outside_prefix ? "" : family.prefix);
    theirs += row->theirs;
    if (const std::size_t at = theirs.find("{}"); at != std::string::npos) {
      theirs.replace(at, 2, number);
    }
    if (!row->bare) theirs += ours.substr(end);
    found.theirs.push_back(std::move(theirs));
  }
  return found;
}

Names names_of(const Recipe& recipe) {
  Names names;
  for (const UnitSpec& unit : model::parameter_table(shape_of(recipe))) {
    for (const ParameterSpec& parameter : unit.parameters) names.push_back(parameter.name);
  }
  return names;
}

// That of the folder, or of the folder that an export would write. Null if there is none.
const huggingface::Family* family_of_names(const Recipe& recipe) {
  if (!recipe.model.from.empty()) return family_of(recipe);
  const WrittenFamily written = written_family(recipe, DType::kF32);
  if (!written.exists()) return nullptr;
  for (const huggingface::Family* family : huggingface::all_families()) {
    if (family->model_type == written.family) return family;
  }
  return nullptr;
}

std::vector<Translation> translations(const huggingface::Family& family, const Names& names) {
  std::vector<Translation> all;
  for (const std::string& name : names) all.push_back(translation_of(family, name));
  return all;
}

// Whether a group has a pattern for none of our names.
bool has_others(const std::vector<ParameterGroup>& groups, const Names& ours) {
  for (const ParameterGroup& group : groups) {
    for (const std::string& pattern : group.parameters) {
      const auto matches = [&](const std::string& name) { return has_match({pattern}, name); };
      if (std::ranges::none_of(ours, matches)) return true;
    }
  }
  return false;
}

// All blocks' names in one pattern, if all are in `names`.
void shorten(Names& names, const std::vector<Translation>& all) {
  for (const Translation& each : all) {
    const std::string& pattern = each.in_all_blocks;
    const auto is_of = [&](const std::string& name) { return has_match({pattern}, name); };
    if (pattern == each.ours || std::ranges::find(names, pattern) != names.end()) continue;
    const auto wanted =
        std::ranges::count_if(all, [&](const Translation& other) { return is_of(other.ours); });
    if (std::ranges::count_if(names, is_of) != wanted) continue;
    std::erase_if(names, is_of);
    names.push_back(pattern);
  }
}

}  // namespace

void take_their_names(Resolution& recipe) {
  constexpr std::string_view kGroups = "optimizer.groups";
  Recipe& values = recipe.values();
  if (values.optimizer.groups.empty()) return;
  const Names names = names_of(values);
  if (!has_others(values.optimizer.groups, names)) return;
  const huggingface::Family* const family = family_of_names(values);
  if (!family) return;
  const std::vector<Translation> all = translations(*family, names);
  for (ParameterGroup& group : values.optimizer.groups) {
    const auto is_theirs = [&](const std::string& pattern) {
      const auto matches = [&](const std::string& name) { return has_match({pattern}, name); };
      return std::ranges::none_of(all, matches, &Translation::ours) &&
             std::ranges::any_of(all, [&](const Translation& each) {
               return std::ranges::any_of(each.theirs, matches);
             });
    };
    Names patterns;
    std::ranges::copy_if(group.parameters, std::back_inserter(patterns), is_theirs);
    if (patterns.empty()) continue;
    Names ours;
    for (const Translation& each : all) {
      std::vector<std::string_view> without;
      for (const std::string& name : each.theirs) {
        if (!has_match(patterns, name)) without.push_back(name);
      }
      if (without.size() == each.theirs.size()) continue;
      if (!without.empty()) {
        return recipe.refuse({kGroups}, "{}: {} is one matrix here; name {}, too.", kGroups,
                             each.ours, joined(without, ", ", " and "));
      }
      ours.push_back(each.ours);
    }
    shorten(ours, all);
    std::erase_if(group.parameters, is_theirs);
    group.parameters.insert(group.parameters.end(), ours.begin(), ours.end());
  }
}

}  // namespace sherd::engine
