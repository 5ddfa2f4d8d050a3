#include "engine/recipe/values.h"

#include <fmt/format.h>

#include <charconv>
#include <cmath>
#include <limits>
#include <set>

#include "core/error.h"
#include "engine/recipe/items.h"
#include "engine/recipe/suggest.h"

namespace sherd::engine {
namespace {

using Kind = RawValue::Kind;

constexpr double kLargestExact = 9007199254740992.0;  // 2^53

template <class T>
std::optional<T> parse_whole(std::string_view text) {
  T value{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error == std::errc() && end == text.data() + text.size()) return value;
  return {};
}

std::string flow_list(const std::vector<std::string>& items) {
  std::string out = "[";
  for (const std::string& item : items) {
    if (out.size() > 1) out += ", ";
    out += item;
  }
  out += ']';
  return out;
}

/// Reads one value for one row; every `read` leaves it to `fail` to say what was expected.
class Reader {
 public:
  Reader(const Field& field, const RawValue& raw, const std::string& where)
      : field_(field), raw_(raw), where_(where) {}

  void read(std::int64_t& out) const { out = whole<std::int64_t>(raw_); }
  void read(std::uint64_t& out) const { out = whole<std::uint64_t>(raw_); }
  void read(double& out) const { out = number(raw_); }

  void read(bool& out) const {
    if (raw_.kind != Kind::kPlain || (raw_.text != "true" && raw_.text != "false")) fail();
    out = raw_.text == "true";
  }

  void read(std::string& out) const { out = text(raw_); }

  int choice() const {
    if (raw_.kind != Kind::kPlain && raw_.kind != Kind::kQuoted) fail();
    for (std::size_t i = 0; i < field_.choices.size(); ++i) {
      if (raw_.text == field_.choices[i]) return static_cast<int>(i);
    }
    fail(meant_choice(raw_.text, field_.choices));
  }

  void read(std::array<double, 2>& out) const {
    if (raw_.kind != Kind::kList || raw_.items.size() != 2) fail();
    out = {number(raw_.items[0]), number(raw_.items[1])};
  }

  void read(std::vector<double>& out) const {
    if (raw_.kind != Kind::kList) fail();
    out.clear();
    for (const RawValue& item : raw_.items) out.push_back(number(item));
  }

  void read(std::vector<std::string>& out) const {
    if (raw_.kind != Kind::kList) fail();
    out.clear();
    for (const RawValue& item : raw_.items) out.push_back(text(item));
  }

  template <class Item>
  void read(std::vector<Item>& out) const {
    if (raw_.kind != Kind::kList) fail();
    out.clear();
    for (std::size_t i = 0; i < raw_.items.size(); ++i) {
      if (raw_.items[i].kind != Kind::kBlock) fail();
      out.push_back(item<Item>(raw_.items[i], fmt::format("{}[{}]", field_.key, i)));
    }
  }

  void read(std::optional<StepRange>& out) const {
    if (raw_.kind != Kind::kList || (raw_.items.size() != 2 && !raw_.items.empty())) fail();
    out.reset();
    if (raw_.items.empty()) return;
    const StepRange steps{whole<std::int64_t>(raw_.items[0]), whole<std::int64_t>(raw_.items[1])};
    if (steps.first > steps.last) fail();
    out = steps;
  }

 private:
  // `name` is the item's, such as "data.sources[1]".
  template <class Item>
  Item item(const RawValue& block, const std::string& name) const {
    Item item;
    std::set<std::string> written;
    for (std::size_t i = 0; i < block.keys.size(); ++i) {
      const std::string& written_key = block.keys[i];
      const ItemKey<Item>& key = key_of<Item>(written_key, name);
      if (!written.insert(written_key).second) {
        throw UsageError("{}: {} has \"{}\" twice. Keep one.", where_, name, written_key);
      }
      Field row = key.row;
      const std::string full_name = name + "." + written_key;
      row.key = full_name;
      const Reader reader(row, block.items[i], where_);
      std::visit([&](auto member) { reader.read_item(item.*member); }, key.member);
    }
    for (const ItemKey<Item>& key : item_keys<Item>()) {
      if (key.row.fallback.kind != Fallback::Kind::kRequired) continue;
      if (written.contains(std::string(key.row.key))) continue;
      throw UsageError("{}: {} lacks \"{}\".", where_, name, key.row.key);
    }
    return item;
  }

  template <class Item>
  const ItemKey<Item>& key_of(const std::string& written, const std::string& name) const {
    std::vector<std::string_view> keys;
    for (const ItemKey<Item>& key : item_keys<Item>()) {
      if (key.row.key == written) return key;
      keys.push_back(key.row.key);
    }
    const std::string_view meant = nearest(written, keys);
    throw UsageError("{}: {} has an unknown key \"{}\"; {}", where_, name, written,
                     meant.empty() ? "its keys are " + joined(keys, ", ", " and ") + "."
                                   : fmt::format("did you mean \"{}\"?", meant));
  }

  template <class T>
  void read_item(T& out) const {
    read(out);
  }
  template <class T>
  void read_item(std::optional<T>& out) const {
    T value{};
    read(value);
    out = value;
  }

  std::optional<double> finite(const RawValue& raw) const {
    if (raw.kind != Kind::kPlain) return {};
    std::string_view text = raw.text;
    if (text.starts_with('+')) text.remove_prefix(1);
    const auto value = parse_whole<double>(text);
    return value && std::isfinite(*value) ? value : std::nullopt;
  }

  double number(const RawValue& raw) const {
    const std::optional<double> value = finite(raw);
    if (value && field_.range.lost_as_float(*value)) {
      throw UsageError("{}: {} is {}, which is {} as the 32-bit float that computes; {}.", where_,
                       field_.key, found(), as_float(*value), field_.expected());
    }
    if (!value || !field_.range.holds(*value)) fail();
    return *value;
  }

  static std::string as_float(double value) {
    if (std::abs(value) > std::numeric_limits<float>::max()) return "infinity";
    const auto rounded = static_cast<float>(value);
    const bool is_zero = std::abs(rounded) < std::numeric_limits<float>::min();
    return is_zero ? "0" : fmt::format("{}", rounded);
  }

  template <class T>
  T whole(const RawValue& raw) const {
    if (raw.kind != Kind::kPlain) fail();
    std::optional<T> value = parse_whole<T>(raw.text);
    if (!value) {
      const std::optional<double> real = finite(raw);
      if (!real || *real != std::trunc(*real) || std::abs(*real) > kLargestExact) fail();
      if (std::is_unsigned_v<T> && *real < 0) fail();
      value = static_cast<T>(*real);
    }
    if (!field_.range.holds(static_cast<double>(*value))) fail();
    return *value;
  }

  std::string text(const RawValue& raw) const {
    if (raw.kind != Kind::kPlain && raw.kind != Kind::kQuoted) fail();
    if (raw.text.find('\0') != std::string::npos) {
      throw UsageError("{}: {} holds a zero byte.", where_, field_.key);
    }
    return raw.text;
  }

  /// The whole list in a message about one of its elements.
  std::string found() const {
    if (raw_.kind != Kind::kList) return raw_.describe();
    std::vector<std::string> items;
    for (const RawValue& item : raw_.items) items.push_back(item.describe());
    return flow_list(items);
  }

  [[noreturn]] void fail(std::string_view meant = {}) const {
    if (!meant.empty()) {
      throw UsageError("{}: {} is {}; {}; did you mean \"{}\"?", where_, field_.key, found(),
                       field_.expected(), meant);
    }
    throw UsageError("{}: {} is {}; {}.", where_, field_.key, found(), field_.expected());
  }

  const Field& field_;
  const RawValue& raw_;
  const std::string& where_;
};

bool is_plain_text(std::string_view text) {
  constexpr std::string_view kLetters =
      "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_/";
  if (text.empty() || text == "null" || text == "Null" || text == "NULL") return false;
  if (kLetters.find(text.front()) == std::string_view::npos) return false;
  return text.find_first_not_of(std::string(kLetters) + ".-+@") == std::string_view::npos;
}

std::string in_quotes(std::string_view text) {
  std::string out = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') {
      out += '\\', out += c;
    } else if (c == '\n') {
      out += "\\n";
    } else if (c == '\t') {
      out += "\\t";
    } else if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f) {
      out += fmt::format("\\x{:02x}", static_cast<unsigned char>(c));
    } else {
      out += c;
    }
  }
  out += '"';
  return out;
}

std::string format(std::int64_t value) {
  return fmt::format("{}", value);
}
std::string format(std::uint64_t value) {
  return fmt::format("{}", value);
}
std::string format(double value) {
  return fmt::format("{}", value);
}
std::string format(bool value) {
  return value ? "true" : "false";
}
std::string format(const std::string& value) {
  return is_plain_text(value) ? value : in_quotes(value);
}
std::string format(const std::array<double, 2>& value) {
  return fmt::format("[{}, {}]", value[0], value[1]);
}
std::string format(const std::vector<double>& value) {
  std::vector<std::string> items;
  for (const double item : value) items.push_back(format(item));
  return flow_list(items);
}
std::string format(const std::vector<std::string>& value) {
  std::vector<std::string> items;
  for (const std::string& item : value) items.push_back(in_quotes(item));
  return flow_list(items);
}
std::string format(const std::optional<StepRange>& value) {
  return value ? fmt::format("[{}, {}]", value->first, value->last) : "[]";
}
template <class T>
std::string format(const std::optional<T>& value) {
  return format(*value);
}
template <class Item>
std::string format(const std::vector<Item>& items) {
  static const Item fresh{};
  std::vector<std::string> blocks;
  for (const Item& item : items) {
    std::string block;
    for (const ItemKey<Item>& key : item_keys<Item>()) {
      std::visit(
          [&](auto member) {
            if (item.*member == fresh.*member) return;
            block += fmt::format("{}{}: {}", block.empty() ? "" : ", ", key.row.key,
                                 format(item.*member));
          },
          key.member);
    }
    blocks.push_back("{" + block + "}");
  }
  return flow_list(blocks);
}

}  // namespace

void assign_value(const Field& field, const RawValue& raw, const std::string& where,
                  Recipe& recipe) {
  const Reader reader(field, raw, where);
  std::visit(
      [&](auto member) {
        if constexpr (std::is_same_v<decltype(member), ChoiceMember>) {
          member.set(recipe, reader.choice());
        } else {
          reader.read(member(recipe));
        }
      },
      field.slot);
}

std::string format_value(const Field& field, const Recipe& recipe) {
  // Slots hand out references for writing too; this one is only read.
  Recipe& readable = const_cast<Recipe&>(recipe);
  return std::visit(
      [&](auto member) -> std::string {
        if constexpr (std::is_same_v<decltype(member), ChoiceMember>) {
          return std::string(field.choices[static_cast<std::size_t>(member.get(readable))]);
        } else {
          return format(member(readable));
        }
      },
      field.slot);
}

}  // namespace sherd::engine
