/// The keys of an item in a list of blocks, such as data.sources: a row for each, as in the field
/// table.
#pragma once

#include <span>
#include <variant>
#include <vector>

#include "engine/recipe/fields.h"

namespace sherd::engine {

template <class Item>
struct ItemKey {
  /// Its slot only says which type the key has.
  Field row;
  std::variant<std::int64_t Item::*, double Item::*, std::string Item::*,
               std::vector<double> Item::*, std::vector<std::string> Item::*,
               std::optional<double> Item::*, std::optional<std::array<double, 2>> Item::*,
               bool Item::*>
      member;
};

template <class Item>
const std::vector<ItemKey<Item>>& item_keys();
template <>
const std::vector<ItemKey<DataSource>>& item_keys();
template <>
const std::vector<ItemKey<DataStage>>& item_keys();
template <>
const std::vector<ItemKey<ValidationSet>>& item_keys();
template <>
const std::vector<ItemKey<TaskFile>>& item_keys();
template <>
const std::vector<ItemKey<ParameterGroup>>& item_keys();

/// The rows of a field's items; empty if the field isn't a list of blocks.
std::vector<Field> item_rows(const Field& field);

}  // namespace sherd::engine
