/// Names in sentences: lists of names, and guesses for names that don't exist.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace sherd::engine {

/// joined({"a", "b", "c"}, ", ", " or ") is "a, b or c".
std::string joined(const std::vector<std::string_view>& names, std::string_view between,
                   std::string_view before_last);

/// Number of letters to insert, delete, replace or swap with their neighbour to turn one name into
/// the other (optimal string alignment). Ignores case, and treats - as _.
int edit_distance(std::string_view a, std::string_view b);

/// The nearest of `names` of which at most a third of the letters differ, or "".
std::string_view nearest(std::string_view wrong, const std::vector<std::string_view>& names);

/// The choice that another engine's word means ("float16" is f16); otherwise the nearest, or "".
std::string_view meant_choice(std::string_view wrong, const std::vector<std::string_view>& choices);

/// 'unknown key "optimizer.rate"; did you mean "optimizer.lr"?' Knows the names of other engines
/// (engine/recipe/foreign_names.h), including features that we don't support.
std::string unknown_key(std::string_view wrong);
std::string unknown_block(std::string_view wrong);

}  // namespace sherd::engine
