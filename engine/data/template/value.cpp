#include "engine/data/template/value.h"

#include <algorithm>
#include <charconv>
#include <cmath>

#include "engine/data/template/growing.h"

namespace sherd::templates {
namespace {

struct HeldText {
  MarkedText text;
  Held held;
};
struct HeldList {
  List list;
  Held held;
};

}  // namespace

Value::Value(MarkedText text) {
  const std::size_t bytes = sizeof(HeldText) + 2 * text.size();
  const auto held = std::make_shared<const HeldText>(HeldText{std::move(text), Held(bytes)});
  data_ = Text(held, &held->text);
}

Value Value::held(List list) {
  std::size_t bytes = sizeof(HeldList) + list.items.size() * sizeof(Value);
  count_steps(list.items.size() / 4);
  for (const Value& item : list.items) {
    list.depth = std::max(list.depth, depth_around(item));
    if (const Undefined* undefined = item.get<Undefined>()) bytes += undefined->name.size();
  }
  const auto held = std::make_shared<const HeldList>(HeldList{std::move(list), Held(bytes)});
  Value value;
  value.data_ = std::shared_ptr<const List>(held, &held->list);
  return value;
}

Value Value::list(std::vector<Value> items, bool is_tuple) {
  return held({std::move(items), is_tuple});
}

Value Value::generator(std::vector<Value> items) {
  return held({std::move(items), false, true});
}

int Value::depth() const {
  if (const List* of_list = unwatched_list()) return of_list->depth;
  if (const Dict* of_dict = dict()) return of_dict->depth;
  if (const Callable* function = callable()) return function->depth;
  return 0;
}

int depth_around(const Value& value) {
  const int depth = value.depth() + 1;
  if (depth > kMostNested && Budget::current()) {
    throw_problem("lists or dictionaries are nested too deep: more than {} levels", kMostNested);
  }
  return depth;
}

Value Value::of(std::shared_ptr<const List> list) {
  Value value;
  value.data_ = std::move(list);
  return value;
}

std::int64_t Value::integer() const {
  if (const bool* flag = get<bool>()) return *flag ? 1 : 0;
  return *get<std::int64_t>();
}

double Value::number() const {
  if (const double* number = get<double>()) return *number;
  return static_cast<double>(integer());
}

const Value* Dict::find(const Value& key) const {
  for (const auto& [name, value] : items) {
    if (equal(name, key)) return &value;
  }
  return nullptr;
}

const Value* Dict::named(std::string_view key) const {
  count_steps(items.size() / 8);
  for (const auto& [name, value] : items) {
    if (name.text() && name.text()->view() == key) return &value;
  }
  return nullptr;
}

void Dict::set(const Value& key, Value value) {
  for (auto& [name, old] : items) {
    if (!equal(name, key)) continue;
    depth = std::max(depth, depth_around(value));
    old = std::move(value);
    return;
  }
  add(key, std::move(value));
}

void Dict::add(Value key, Value value) {
  depth = std::max({depth, depth_around(key), depth_around(value)});
  held.add(2 * sizeof(Value));
  items.emplace_back(std::move(key), std::move(value));
}

void Dict::put_back(std::vector<std::pair<Value, Value>> before, int depth_before) {
  items = std::move(before);
  depth = depth_before;
  held.set(kEmptyBytes + 2 * sizeof(Value) * items.size());
}

bool truth(const Value& value) {
  if (value.is_undefined() || value.is_none()) return false;
  if (const double* number = value.get<double>()) return *number != 0.0;
  if (value.is_integer()) return value.integer() != 0;
  if (value.text()) return !value.text()->empty();
  if (const List* list = watched(value)) {
    if (const auto known = list->watched_by->truth(*list)) return *known;
  }
  if (value.list()) return value.list()->is_generator || !value.list()->items.empty();
  if (const Dict* dict = value.dict()) return dict->is_namespace || !dict->items.empty();
  return true;
}

bool equal(const Value& a, const Value& b) {
  const Deeper deeper;
  count_steps();
  if (a.is_number() && b.is_number()) {
    return a.is_integer() && b.is_integer() ? a.integer() == b.integer() : a.number() == b.number();
  }
  if (a.text() && b.text()) {
    count_text(std::min(a.text()->size(), b.text()->size()));
    return a.text()->bytes == b.text()->bytes;
  }
  if (a.list() && b.list()) {
    if (a.list() == b.list()) return true;
    const auto &x = a.list()->items, &y = b.list()->items;
    return a.list()->is_tuple == b.list()->is_tuple &&
           std::equal(x.begin(), x.end(), y.begin(), y.end(), equal);
  }
  if (const Dict* x = a.dict(), *y = b.dict(); x && y) {
    if (x == y || x->is_namespace || y->is_namespace) return x == y;
    return x->items.size() == y->items.size() &&
           std::all_of(x->items.begin(), x->items.end(), [&](const auto& item) {
             const Value* other = y->find(item.first);
             return other && equal(item.second, *other);
           });
  }
  if (a.callable() || b.callable()) return a.callable() == b.callable();
  return (a.is_none() && b.is_none()) || (a.is_undefined() && b.is_undefined());
}

bool less(const Value& a, const Value& b) {
  const Deeper deeper;
  count_steps();
  if (a.is_number() && b.is_number()) {
    return a.is_integer() && b.is_integer() ? a.integer() < b.integer() : a.number() < b.number();
  }
  if (a.text() && b.text()) {
    count_text(std::min(a.text()->size(), b.text()->size()));
    return a.text()->bytes < b.text()->bytes;
  }
  if (a.list() && b.list()) {
    const auto &x = a.list()->items, &y = b.list()->items;
    for (std::size_t i = 0; i < std::min(x.size(), y.size()); ++i) {
      if (!equal(x[i], y[i])) return less(x[i], y[i]);
    }
    return x.size() < y.size();
  }
  throw_problem("'<' not supported between '{}' and '{}'", type_name(a), type_name(b));
}

std::string type_name(const Value& value) {
  if (value.is_undefined()) return "Undefined";
  if (value.is_none()) return "NoneType";
  if (value.get<bool>()) return "bool";
  if (value.get<std::int64_t>()) return "int";
  if (value.get<double>()) return "float";
  if (value.text()) return "str";
  if (const List* list = value.list()) {
    return list->is_generator ? "generator" : list->is_tuple ? "tuple" : "list";
  }
  if (value.dict()) return value.dict()->is_namespace ? "Namespace" : "dict";
  return "function";
}

MarkedText to_text(const Value& value) {
  if (value.text()) {
    count_text(value.text()->size());
    return *value.text();
  }
  if (value.is_undefined()) return {};
  return to_repr(value);
}

std::size_t character_end(const MarkedText& text, std::size_t begin) {
  const auto continues = [&](std::size_t i) {
    return i < text.size() && (static_cast<std::uint8_t>(text.bytes[i]) & 0xc0) == 0x80;
  };
  ++begin;
  while (continues(begin)) ++begin;
  return begin;
}

std::int64_t num_characters(const MarkedText& text) {
  count_text(text.size());
  return std::count_if(text.bytes.begin(), text.bytes.end(),
                       [](char c) { return (static_cast<std::uint8_t>(c) & 0xc0) != 0x80; });
}

}  // namespace sherd::templates
