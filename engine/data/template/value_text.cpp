// Values as text: Python's repr, and JSON.
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

}  // namespace sherd::templates
