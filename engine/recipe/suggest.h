/// Names in sentences: lists of them, and guesses what a person meant by one that doesn't exist.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace sherd::engine {

/// joined({"a", "b", "c"}, ", ", " or ") is "a, b or c".
std::string joined(const std::vector<std::string_view>& names, std::string_view between,
                   std::string_view before_last);

/// Letters to insert, delete, replace or swap with their neighbour to turn one name into the other
/// (optimal string alignment), regardless of case and of - against _.
int edit_distance(std::string_view a, std::string_view b);

/// The nearest of `names`, or "" if none is near: up to a third of the letters may differ.
std::string_view nearest(std::string_view wrong, const std::vector<std::string_view>& names);

/// The choice that another engine's word means ("float16" is f16); otherwise the nearest, or "".
std::string_view meant_choice(std::string_view wrong, const std::vector<std::string_view>& choices);

/// 'unknown key "optimizer.rate"; did you mean "optimizer.lr"?' Knows the words of other engines
/// (engine/recipe/foreign_names.h), and what of theirs there isn't.
std::string unknown_key(std::string_view wrong);
std::string unknown_block(std::string_view wrong);

}  // namespace sherd::engine
