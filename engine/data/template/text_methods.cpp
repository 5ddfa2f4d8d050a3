// Python's methods of texts, and what filters use of them.
#include <algorithm>
#include <clocale>
#include <cstring>
#include <cwctype>
#include <functional>
#include <map>

#include "engine/data/template/functions.h"
#include "engine/data/utf8.h"

namespace sherd::templates {
namespace {

constexpr std::string_view kSpace = " \t\n\r\f\v\x1c\x1d\x1e\x1f";

// Python's, for the character that begins at `offset`.
bool is_space(std::string_view character) {
  if (kSpace.find(character[0]) != std::string_view::npos) return true;
  const char32_t point = data::decode_utf8(data::as_bytes(character), 0).value;
  return point == 0x85 || point == 0xa0 || point == 0x1680 ||
         (point >= 0x2000 && point <= 0x200a) || point == 0x2028 || point == 0x2029 ||
         point == 0x202f || point == 0x205f || point == 0x3000;
}

Value strip_method(const MarkedText& text, const Given& given, bool left, bool right) {
  const Value* characters = given.find(0, "chars");
  if (!characters || characters->is_none()) return stripped(text, {}, left, right);
  if (!characters->text()) throw_problem("strip takes a text");
  if (characters->text()->empty()) return text;
  return stripped(text, characters->text()->view(), left, right);
}

// Of white space, runs; of a separator, every one.
std::vector<Value> split_text(const MarkedText& text, const Value* separator, std::int64_t most) {
  std::vector<Value> parts;
  std::size_t begin = 0;
  const auto more = [&] { return most < 0 || std::ssize(parts) < most; };
  if (separator && !separator->is_none()) {
    if (!separator->text() || separator->text()->empty()) throw_problem("empty separator");
    const std::string& by = separator->text()->bytes;
    for (std::size_t at = 0; more(); begin = at + by.size()) {
      at = find_text(text.view(), by, begin);
      if (at == std::string::npos) break;
      parts.emplace_back(text.part(begin, at - begin));
    }
    parts.emplace_back(text.part(begin));
    return parts;
  }
  for (;;) {
    begin = text.bytes.find_first_not_of(kSpace, begin);
    if (begin == std::string::npos) return parts;
    if (!more()) {
      parts.emplace_back(text.part(begin));
      return parts;
    }
    const std::size_t end = std::min(text.size(), text.bytes.find_first_of(kSpace, begin));
    parts.emplace_back(text.part(begin, end - begin));
    begin = end;
  }
}

std::vector<Value> split_from_right(const MarkedText& text, const Value* separator,
                                    std::int64_t most) {
  std::vector<Value> parts = split_text(text, separator, -1);
  if (most < 0 || std::ssize(parts) <= most + 1) return parts;
  if (!separator || !separator->text()) throw_problem("rsplit without a separator isn't supported");
  const std::size_t joined = parts.size() - static_cast<std::size_t>(most);
  std::size_t size = 0;
  for (std::size_t i = 0; i < joined; ++i) size += parts[i].text()->size();
  size += (joined - 1) * separator->text()->size();
  std::vector<Value> result = {text.part(0, size)};
  result.insert(result.end(), parts.begin() + static_cast<std::ptrdiff_t>(joined), parts.end());
  return result;
}

std::vector<Value> lines_of(const MarkedText& text) {
  std::vector<Value> lines;
  for (std::size_t begin = 0; begin < text.size();) {
    std::size_t end = std::min(text.size(), text.bytes.find_first_of("\r\n", begin));
    lines.emplace_back(text.part(begin, end - begin));
    if (text.bytes.compare(end, 2, "\r\n") == 0) ++end;
    begin = end + 1;
  }
  return lines;
}

bool has_affix(const MarkedText& text, const Value& affix, bool front) {
  const Deeper deeper;
  count_steps();
  if (const List* any = affix.list()) {
    return std::any_of(any->items.begin(), any->items.end(),
                       [&](const Value& one) { return has_affix(text, one, front); });
  }
  if (!affix.text()) throw_problem("startswith and endswith take a text or a tuple of texts");
  const std::string& bytes = affix.text()->bytes;
  count_text(bytes.size());
  return front ? text.bytes.starts_with(bytes) : text.bytes.ends_with(bytes);
}

std::int64_t count_of(std::string_view text, std::string_view part) {
  if (part.empty()) throw_problem("counting an empty text isn't supported");
  std::int64_t count = 0;
  for (std::size_t at = find_text(text, part); at != std::string_view::npos;
       at = find_text(text, part, at + part.size())) {
    ++count;
  }
  return count;
}

Value found(const MarkedText& text, std::size_t at) {
  if (at == std::string::npos) return std::int64_t{-1};
  return num_characters(text.part(0, at));
}

// "{}", "{0}", "{name}", "{{" and "}}".
MarkedText formatted(const MarkedText& form, const Arguments& arguments) {
  MarkedText out;
  std::size_t next = 0;
  for (std::size_t i = 0; i < form.size(); ++i) {
    const char c = form.bytes[i];
    const bool doubled = i + 1 < form.size() && form.bytes[i + 1] == c;
    if ((c == '{' || c == '}') && doubled) {
      out.append(form.part(i++, 1));
    } else if (c == '{') {
      const std::size_t end = form.bytes.find('}', i);
      if (end == std::string::npos) throw_problem("format: a field has no end");
      const std::string field = form.bytes.substr(i + 1, end - i - 1);
      const bool is_number =
          !field.empty() && field.find_first_not_of("0123456789") == std::string::npos;
      if (field.find_first_of("!:.[") != std::string::npos) {
        throw_problem("format fields like {{{}}} aren't supported", field);
      }
      const Given given("format", arguments);
      const std::size_t place = field.empty() ? next++
                                : is_number   ? std::stoul(field.substr(0, 6))
                                              : arguments.positional.size();
      out.append(to_text(given.require(place, field)));
      i = end;
    } else {
      out.append(form.part(i, 1));
    }
  }
  return out;
}

Value find_last(const MarkedText& t, const Given& g) {
  g.at_most(1);
  const std::string& sub = g.text(0, "sub").bytes;
  count_text(t.size() * (sub.size() / 16 + 1));  // it compares at each place
  return found(t, t.bytes.rfind(sub));
}

const std::map<std::string_view, TextMethod>& text_methods() {
  using M = const MarkedText&;
  using G = const Given&;
  using A = const Arguments&;
  static const std::map<std::string_view, TextMethod> methods = {
      {"split",
       [](M t, G g, A) {
         return Value::list(split_text(t, g.find(0, "sep"), g.integer(1, "maxsplit", -1)));
       }},
      {"rsplit",
       [](M t, G g, A) {
         return Value::list(split_from_right(t, g.find(0, "sep"), g.integer(1, "maxsplit", -1)));
       }},
      {"splitlines",
       [](M t, G g, A) {
         g.at_most(0);
         return Value::list(lines_of(t));
       }},
      {"strip", [](M t, G g, A) { return strip_method(t, g, true, true); }},
      {"lstrip", [](M t, G g, A) { return strip_method(t, g, true, false); }},
      {"rstrip", [](M t, G g, A) { return strip_method(t, g, false, true); }},
      {"startswith",
       [](M t, G g, A) {
         g.at_most(1);
         return Value(has_affix(t, g.require(0, "prefix"), true));
       }},
      {"endswith",
       [](M t, G g, A) {
         g.at_most(1);
         return Value(has_affix(t, g.require(0, "suffix"), false));
       }},
      {"replace",
       [](M t, G g, A) {
         return Value(replaced(t, g.text(0, "old"), g.text(1, "new"), g.integer(2, "count", -1)));
       }},
      {"removeprefix",
       [](M t, G g, A) {
         return Value(
             has_affix(t, g.require(0, "prefix"), true) ? t.part(g.text(0, "prefix").size()) : t);
       }},
      {"removesuffix",
       [](M t, G g, A) {
         return Value(has_affix(t, g.require(0, "suffix"), false)
                          ? t.part(0, t.size() - g.text(0, "suffix").size())
                          : t);
       }},
      {"upper", [](M t, G, A) { return Value(with_letters(t, Letters::kUpper)); }},
      {"lower", [](M t, G, A) { return Value(with_letters(t, Letters::kLower)); }},
      {"title", [](M t, G, A) { return Value(with_letters(t, Letters::kTitle)); }},
      {"capitalize", [](M t, G, A) { return Value(with_letters(t, Letters::kCapitalize)); }},
      {"find",
       [](M t, G g, A) {
         g.at_most(1);
         return found(t, find_text(t.view(), g.text(0, "sub").view()));
       }},
      {"rfind", [](M t, G g, A) { return find_last(t, g); }},
      {"count",
       [](M t, G g, A) {
         g.at_most(1);
         return Value(count_of(t.view(), g.text(0, "sub").view()));
       }},
      {"join",
       [](M t, G g, A) {
         Arguments arguments;
         arguments.positional.emplace_back(t);
         return apply_filter("join", g.require(0, "iterable"), arguments);
       }},
      {"isdigit",
       [](M t, G, A) {
         return Value(!t.empty() && t.bytes.find_first_not_of("0123456789") == std::string::npos);
       }},
      {"format", [](M t, G, A a) { return Value(formatted(t, a)); }},
  };
  return methods;
}

// A character in upper or lower case. Refused: those that become several, and the sigma whose form
// follows from its place.
std::string in_case(std::string_view character, bool upper) {
  static const locale_t unicode = newlocale(LC_CTYPE_MASK, "C.UTF-8", nullptr);
  const auto first = static_cast<std::uint8_t>(character[0]);
  if (first < 0x80) {
    const bool is_letter = (first | 0x20) >= 'a' && (first | 0x20) <= 'z';
    return {static_cast<char>(!is_letter ? first : upper ? first & ~0x20 : first | 0x20)};
  }
  const auto point = data::decode_utf8(data::as_bytes(character), 0).value;
  constexpr std::pair<char32_t, char32_t> kLonger[] = {
      {0xdf, 0xdf},     {0x130, 0x130},   {0x149, 0x149},  {0x1f0, 0x1f0},
      {0x390, 0x390},   {0x3a3, 0x3a3},   {0x3b0, 0x3b0},  {0x587, 0x587},
      {0x1e96, 0x1e9e}, {0x1f50, 0x1ffc}, {0xfb00, 0xfb17}};
  for (const auto& [from, to] : kLonger) {
    if (point >= from && point <= to) {
      throw_problem("upper and lower case of U+{:04X} aren't supported",
                    static_cast<std::uint32_t>(point));
    }
  }
  if (!unicode)
    throw_problem("upper and lower case of letters beyond ASCII need the locale C.UTF-8");
  const auto wide = static_cast<wint_t>(point);
  std::string changed;
  const wint_t other = upper ? towupper_l(wide, unicode) : towlower_l(wide, unicode);
  data::append_utf8(changed, static_cast<char32_t>(other));
  return changed;
}

}  // namespace

const TextMethod* text_method(std::string_view name) {
  const auto found = text_methods().find(name);
  return found == text_methods().end() ? nullptr : &found->second;
}

std::size_t find_text(std::string_view text, std::string_view part, std::size_t from) {
  if (from > text.size()) return std::string_view::npos;
  const std::string_view rest = text.substr(from);
  const void* found = nullptr;
  // In growing pieces: a sanitizer checks all the bytes that it is given, also if the first one fits.
  for (std::size_t size = 256;; size *= 4) {
    found = ::memmem(rest.data(), std::min(size, rest.size()), part.data(), part.size());
    if (found || size >= rest.size()) break;
  }
  const std::size_t at =
      found ? static_cast<std::size_t>(static_cast<const char*>(found) - rest.data()) : rest.size();
  count_text(at * (std::min<std::size_t>(part.size(), 256) / 16 + 1) + part.size());
  return found ? from + at : std::string_view::npos;
}

MarkedText stripped(const MarkedText& text, std::string_view characters, bool left, bool right) {
  const auto goes = [&](std::size_t from, std::size_t to) {
    count_text(characters.size());
    const std::string_view character = text.view().substr(from, to - from);
    return characters.empty() ? is_space(character)
                              : characters.find(character) != std::string_view::npos;
  };
  std::size_t begin = 0, end = text.size();
  for (std::size_t next = 0; left && begin < end; begin = next) {
    next = character_end(text, begin);
    if (!goes(begin, next)) break;
  }
  for (std::size_t last = 0; right && begin < end; end = last) {
    last = end - 1;
    while (last > begin && (static_cast<std::uint8_t>(text.bytes[last]) & 0xc0) == 0x80) --last;
    if (!goes(last, end)) break;
  }
  return text.part(begin, end - begin);
}

MarkedText replaced(const MarkedText& text, const MarkedText& from, const MarkedText& to,
                    std::int64_t count) {
  if (from.empty()) throw_problem("replacing an empty text isn't supported");
  MarkedText out;
  std::size_t begin = 0;
  for (; count != 0; --count) {
    const std::size_t at = find_text(text.view(), from.view(), begin);
    if (at == std::string::npos) break;
    out.append(text.part(begin, at - begin));
    out.append(to);
    begin = at + from.size();
  }
  out.append(text.part(begin));
  return out;
}

MarkedText with_letters(const MarkedText& text, Letters letters) {
  MarkedText out;
  bool inside = false;  // a word, or the text
  for (std::size_t i = 0, end = 0; i < text.size(); i = end) {
    count_steps();
    end = character_end(text, i);
    const std::string_view character = text.view().substr(i, end - i);
    const bool upper = letters == Letters::kUpper || (letters != Letters::kLower && !inside);
    const std::string changed = in_case(character, upper);
    const bool is_letter = in_case(character, true) != in_case(character, false);
    inside = letters == Letters::kTitle ? is_letter : true;
    out.append(changed, static_cast<std::uint8_t>(text.marks[i]));
  }
  return out;
}

}  // namespace sherd::templates
