#include "engine/data/template/value.h"

#include <algorithm>
#include <charconv>
#include <cmath>

#include "engine/data/template/growing.h"

namespace sherd::templates {
namespace {

// Python's repr of a double: the shortest digits, with an exponent outside of 1e-4 to 1e16.
std::string float_text(double value) {
  if (std::isnan(value)) return "nan";
  if (std::isinf(value)) return value > 0 ? "inf" : "-inf";
  char buffer[64];
  const double size = std::abs(value);
  const bool plain = size == 0.0 || (size >= 1e-4 && size < 1e16);
  const auto format = plain ? std::chars_format::fixed : std::chars_format::scientific;
  const auto end = std::to_chars(buffer, buffer + sizeof buffer, value, format).ptr;
  std::string text(buffer, end);
  if (plain && text.find('.') == std::string::npos) text += ".0";
  return text;
}

void append_quoted(MarkedText& to, const MarkedText& text) {
  const bool single =
      text.bytes.find('\'') == std::string::npos || text.bytes.find('"') != std::string::npos;
  const char quote = single ? '\'' : '"';
  to.append({&quote, 1}, 0);
  for (std::size_t i = 0; i < text.size(); ++i) {
    const char c = text.bytes[i];
    const auto mark = static_cast<std::uint8_t>(text.marks[i]);
    const auto byte = static_cast<std::uint8_t>(c);
    if (c == quote || c == '\\') {
      to.append(std::string{'\\', c}, mark);
    } else if (c == '\n' || c == '\r' || c == '\t') {
      to.append(c == '\n' ? "\\n" : c == '\r' ? "\\r" : "\\t", mark);
    } else if (byte < 0x20 || byte == 0x7f) {
      to.append(fmt::format("\\x{:02x}", byte), mark);
    } else {
      to.append({&c, 1}, mark);
    }
  }
  to.append({&quote, 1}, 0);
}

std::uint32_t code_point(std::string_view text, std::size_t& offset) {
  const auto byte = [&](std::size_t i) { return static_cast<std::uint8_t>(text[i]) & 0x3fu; };
  const auto lead = static_cast<std::uint8_t>(text[offset]);
  const std::size_t length = lead < 0x80 ? 1 : lead < 0xe0 ? 2 : lead < 0xf0 ? 3 : 4;
  std::uint32_t point = length == 1 ? lead : lead & (0xffu >> (length + 1));
  for (std::size_t i = 1; i < length && offset + i < text.size(); ++i) {
    point = point << 6 | byte(offset + i);
  }
  offset = std::min(text.size(), offset + length);
  return point;
}

void append_json_text(MarkedText& to, const MarkedText& text, bool ascii) {
  to.append("\"", 0);
  for (std::size_t i = 0; i < text.size(); ++i) {
    const char c = text.bytes[i];
    const auto mark = static_cast<std::uint8_t>(text.marks[i]);
    const auto byte = static_cast<std::uint8_t>(c);
    constexpr std::string_view kPlain = "\"\\\b\f\n\r\t", kEscaped = "\"\\bfnrt";
    if (const auto at = kPlain.find(c); at != std::string_view::npos) {
      to.append(std::string{'\\', kEscaped[at]}, mark);
    } else if (byte < 0x20) {
      to.append(fmt::format("\\u{:04x}", byte), mark);
    } else if (ascii && byte >= 0x80) {
      std::size_t end = i;
      const std::uint32_t point = code_point(text.bytes, end);
      to.append(point < 0x10000 ? fmt::format("\\u{:04x}", point)
                                : fmt::format("\\u{:04x}\\u{:04x}", 0xd7c0 + (point >> 10),
                                              0xdc00 + (point & 0x3ff)),
                mark);
      i = end - 1;
    } else {
      to.append({&c, 1}, mark);
    }
  }
  to.append("\"", 0);
}

class JsonWriter {
 public:
  explicit JsonWriter(const JsonStyle& style) : style_(style) {}

  void write(const Value& value, int depth) {
    const Deeper deeper;
    count_steps();
    if (const MarkedText* text = value.text()) return append_json_text(out, *text, style_.ascii);
    if (const List* list = value.list(); list && !list->is_generator) {
      return members("[]", list->items.size(), depth,
                     [&](std::size_t i) { write(list->items[i], depth + 1); });
    }
    if (const Dict* dict = value.dict()) {
      const auto items = in_order(*dict);
      return members("{}", items.size(), depth, [&](std::size_t i) {
        append_json_text(out, key_text(items[i]->first), style_.ascii);
        out.append(style_.key_separator, 0);
        write(items[i]->second, depth + 1);
      });
    }
    if (value.is_none() || value.is_number()) {
      out.append(key_text(value));
      return;
    }
    throw_problem("Object of type {} is not JSON serializable", type_name(value));
  }

  MarkedText out;

 private:
  std::vector<const std::pair<Value, Value>*> in_order(const Dict& dict) const {
    std::vector<const std::pair<Value, Value>*> items;
    for (const auto& item : dict.items) items.push_back(&item);
    if (style_.sort_keys) {
      std::stable_sort(items.begin(), items.end(),
                       [](const auto* a, const auto* b) { return less(a->first, b->first); });
    }
    return items;
  }
  static MarkedText key_text(const Value& key) {
    if (key.text()) return *key.text();
    if (key.is_none()) return MarkedText("null");
    if (const bool* flag = key.get<bool>()) return MarkedText(*flag ? "true" : "false");
    if (const double* number = key.get<double>(); number && !std::isfinite(*number)) {
      return MarkedText(std::isnan(*number) ? "NaN" : *number > 0 ? "Infinity" : "-Infinity");
    }
    return to_text(key);
  }
  template <class Write>
  void members(std::string_view brackets, std::size_t count, int depth, const Write& write_one) {
    out.append(brackets.substr(0, 1), 0);
    for (std::size_t i = 0; i < count; ++i) {
      if (i > 0) out.append(style_.item_separator, 0);
      new_line(depth + 1);
      write_one(i);
    }
    if (count > 0) new_line(depth);
    out.append(brackets.substr(1), 0);
  }
  void new_line(int depth) {
    if (style_.indent < 0) return;
    out.append("\n" + std::string(static_cast<std::size_t>(style_.indent * depth), ' '), 0);
  }

  JsonStyle style_;
};

}  // namespace

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

namespace {

void append_repr(MarkedText& out, const Value& value) {
  const Deeper deeper;
  count_steps();
  if (value.is_undefined()) {
    out.append("Undefined", 0);
  } else if (value.is_none()) {
    out.append("None", 0);
  } else if (const bool* flag = value.get<bool>()) {
    out.append(*flag ? "True" : "False", 0);
  } else if (value.is_integer()) {
    out.append(std::to_string(value.integer()), 0);
  } else if (const double* number = value.get<double>()) {
    out.append(float_text(*number), 0);
  } else if (value.text()) {
    append_quoted(out, *value.text());
  } else if (const List* list = value.list(); list && !list->is_generator) {
    out.append(list->is_tuple ? "(" : "[", 0);
    for (std::size_t i = 0; i < list->items.size(); ++i) {
      if (i > 0) out.append(", ", 0);
      append_repr(out, list->items[i]);
    }
    out.append(list->is_tuple ? (list->items.size() == 1 ? ",)" : ")") : "]", 0);
  } else if (const Dict* dict = value.dict()) {
    out.append("{", 0);
    for (std::size_t i = 0; i < dict->items.size(); ++i) {
      if (i > 0) out.append(", ", 0);
      append_repr(out, dict->items[i].first);
      out.append(": ", 0);
      append_repr(out, dict->items[i].second);
    }
    out.append("}", 0);
  } else {
    throw_problem("a {} can't be written as text", type_name(value));
  }
}

}  // namespace

MarkedText to_repr(const Value& value) {
  MarkedText out;
  append_repr(out, value);
  return out;
}

MarkedText to_json(const Value& value, const JsonStyle& style) {
  JsonWriter writer(style);
  writer.write(value, 0);
  return std::move(writer.out);
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
