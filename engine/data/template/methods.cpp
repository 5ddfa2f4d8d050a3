// Arguments; methods of lists and dictionaries; attributes and items.
#include <algorithm>
#include <functional>

#include "engine/data/template/functions.h"
#include "engine/data/template/growing.h"

namespace sherd::templates {
namespace {

// As part of what an Undefined says.
std::string shortened(std::string_view name) {
  constexpr std::size_t kMostShown = 64;
  return std::string(name.substr(0, kMostShown)) + (name.size() > kMostShown ? "..." : "");
}

std::shared_ptr<const Callable> bound(std::string name, const Value& to,
                                      std::function<Value(const Arguments&)> call) {
  return std::make_shared<const Callable>(
      Callable{std::move(name), std::move(call), depth_around(to)});
}

Value items_of(const Dict& dict) {
  std::vector<Value> items;
  for (const auto& [key, value] : dict.items) items.push_back(Value::list({key, value}, true));
  return Value::list(std::move(items));
}

Value keys_of(const Dict& dict, bool values) {
  expect_bytes(dict.items.size() * sizeof(Value));
  count_steps(dict.items.size() / 4);
  std::vector<Value> keys;
  for (const auto& [key, value] : dict.items) keys.push_back(values ? value : key);
  return Value::list(std::move(keys));
}

std::shared_ptr<const Callable> dict_method(const Dict& dict, std::string_view name) {
  if (dict.is_namespace) return nullptr;
  std::function<Value(const Arguments&)> call;
  if (name == "items") {
    call = [&dict](const Arguments&) { return items_of(dict); };
  } else if (name == "keys" || name == "values") {
    call = [&dict, values = name == "values"](const Arguments&) { return keys_of(dict, values); };
  } else if (name == "get") {
    call = [&dict](const Arguments& arguments) {
      const Given given("get", arguments);
      const Value* value = dict.find(given.require(0, "key"));
      if (value) return *value;
      const Value* missing = given.find(1, "default");
      return missing ? *missing : Value(None{});
    };
  } else {
    for (const std::string_view unsafe : {"pop", "update", "clear", "setdefault", "popitem"}) {
      if (name == unsafe)
        throw_problem("{} would change a dictionary, which templates may not do", name);
    }
    return nullptr;
  }
  return std::make_shared<const Callable>(Callable{std::string(name), std::move(call)});
}

std::shared_ptr<const Callable> list_method(const List& list, std::string_view name) {
  std::function<Value(const Arguments&)> call;
  if (name == "index") {
    call = [&list](const Arguments& arguments) {
      const Value& value = Given("index", arguments).require(0, "value");
      for (std::size_t i = 0; i < list.items.size(); ++i) {
        if (equal(list.items[i], value)) return Value(static_cast<std::int64_t>(i));
      }
      throw_problem("the value isn't in the list");
    };
  } else if (name == "count") {
    call = [&list](const Arguments& arguments) {
      const Value& value = Given("count", arguments).require(0, "value");
      return Value(static_cast<std::int64_t>(
          std::count_if(list.items.begin(), list.items.end(),
                        [&](const Value& item) { return equal(item, value); })));
    };
  } else {
    for (const std::string_view unsafe :
         {"append", "extend", "insert", "pop", "remove", "clear", "reverse", "sort"}) {
      if (name == unsafe) throw_problem("{} would change a list, which templates may not do", name);
    }
    return nullptr;
  }
  return std::make_shared<const Callable>(Callable{std::string(name), std::move(call)});
}

}  // namespace

const Value* Given::find(std::size_t place, std::string_view name) const {
  if (place < arguments_.positional.size()) return &arguments_.positional[place];
  for (const auto& [given, value] : arguments_.named) {
    if (given == name) return &value;
  }
  return nullptr;
}

const Value& Given::require(std::size_t place, std::string_view name) const {
  const Value* value = find(place, name);
  if (!value) throw_problem("{} lacks its argument \"{}\"", function_, name);
  return *value;
}

const MarkedText& Given::text(std::size_t place, std::string_view name) const {
  const Value& value = require(place, name);
  if (!value.text())
    throw_problem("{}: \"{}\" is a {}, not a str", function_, name, type_name(value));
  return *value.text();
}

std::int64_t Given::integer(std::size_t place, std::string_view name, std::int64_t missing) const {
  const Value* value = find(place, name);
  if (!value || value->is_none()) return missing;
  if (!value->is_integer()) {
    throw_problem("{}: \"{}\" is a {}, not an int", function_, name, type_name(*value));
  }
  return value->integer();
}

bool Given::flag(std::size_t place, std::string_view name, bool missing) const {
  const Value* value = find(place, name);
  return value ? truth(*value) : missing;
}

void Given::at_most(std::size_t count) const {
  if (arguments_.positional.size() + arguments_.named.size() > count) {
    throw_problem("{} takes no more than {} arguments here", function_, count);
  }
}

std::shared_ptr<const Callable> method_of(const Value& value, std::string_view name) {
  if (const Dict* dict = value.dict()) {
    std::shared_ptr<const Callable> method = dict_method(*dict, name);
    if (!method) return nullptr;
    return bound(method->name, value,
                 [value, method](const Arguments& a) { return method->call(a); });
  }
  if (const List* list = value.list()) {
    std::shared_ptr<const Callable> method = list_method(*list, name);
    if (!method) return nullptr;
    return bound(method->name, value,
                 [value, method](const Arguments& a) { return method->call(a); });
  }
  if (!value.text()) return nullptr;
  const TextMethod* method = text_method(name);
  if (!method) return nullptr;
  return bound(std::string(name), value,
               [value, method, name = std::string(name)](const Arguments& arguments) {
                 return (*method)(*value.text(), Given(name, arguments), arguments);
               });
}

Value attribute_of(const Value& value, const std::string& name) {
  count_steps();
  if (const Undefined* undefined = value.get<Undefined>()) {
    throw_problem("{} is undefined, so it has no {}", undefined->name, shortened(name));
  }
  if (auto method = method_of(value, name)) return method;
  if (const Dict* dict = value.dict()) {
    if (const Value* found = dict->named(name)) return *found;
  }
  return Undefined{fmt::format("{} of a {}", shortened(name), type_name(value))};
}

MarkedText character_at(const MarkedText& text, std::int64_t index) {
  std::size_t at = 0;
  for (; index > 0; --index) at = character_end(text, at);
  return text.part(at, character_end(text, at) - at);
}

Value item_of(const Value& value, const Value& key) {
  count_steps();
  if (const Undefined* undefined = value.get<Undefined>()) {
    throw_problem("{} is undefined, so it has no items", undefined->name);
  }
  if (const List* list = watched(value); list && key.is_integer()) {
    if (const Value* item = list->watched_by->item(*list, key.integer())) return *item;
  }
  if (const Dict* dict = value.dict()) {
    if (const Value* found = dict->find(key)) return *found;
  } else if (key.is_integer() && (value.list() || value.text())) {
    const auto size =
        value.list() ? std::ssize(value.list()->items) : num_characters(*value.text());
    const std::int64_t index = key.integer() < 0 ? key.integer() + size : key.integer();
    if (index < 0 || index >= size) {
      return Undefined{fmt::format("item {} of a {} of {}", key.integer(), type_name(value), size)};
    }
    if (value.list()) return value.list()->items[static_cast<std::size_t>(index)];
    return character_at(*value.text(), index);
  }
  if (key.text()) return attribute_of(value, key.text()->bytes);
  return Undefined{fmt::format("item {} of a {}", shortened(to_repr(key).bytes), type_name(value))};
}

std::vector<Value> elements_of(const Value& value) {
  if (value.is_undefined()) return {};
  if (const List* list = value.list()) {
    expect_bytes(list->items.size() * sizeof(Value));
    count_steps(list->items.size() / 4);
    return list->items;
  }
  if (const Dict* dict = value.dict(); dict && !dict->is_namespace) {
    return keys_of(*dict, false).list()->items;
  }
  if (const MarkedText* text = value.text()) {
    std::vector<Value> characters;
    for (std::size_t i = 0; i < text->size();) {
      const std::size_t end = character_end(*text, i);
      characters.emplace_back(text->part(i, end - i));
      i = end;
    }
    return characters;
  }
  throw_problem("a {} can't be iterated over", type_name(value));
}

bool contains(const Value& container, const Value& value) {
  if (const MarkedText* text = container.text()) {
    if (!value.text()) throw_problem("'in <str>' requires a str, not a {}", type_name(value));
    return find_text(text->view(), value.text()->view()) != std::string::npos;
  }
  if (const Dict* dict = container.dict()) return dict->find(value) != nullptr;
  const auto is_value = [&](const Value& element) { return equal(element, value); };
  if (const List* list = container.list()) {
    return std::any_of(list->items.begin(), list->items.end(), is_value);
  }
  const std::vector<Value> elements = elements_of(container);
  return std::any_of(elements.begin(), elements.end(), is_value);
}

}  // namespace sherd::templates
