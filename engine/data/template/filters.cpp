// Filters, by Jinja's names.
#include <algorithm>
#include <charconv>
#include <cmath>
#include <functional>
#include <map>
#include <optional>

#include "engine/data/template/functions.h"

namespace sherd::templates {
namespace {

using V = const Value&;
using A = const Arguments&;

std::int64_t length_of(V value) {
  if (value.text()) return num_characters(*value.text());
  if (value.list() && !value.list()->is_generator) return std::ssize(value.list()->items);
  if (value.dict() && !value.dict()->is_namespace) return std::ssize(value.dict()->items);
  if (value.is_undefined()) return 0;
  throw_problem("a {} has no length", type_name(value));
}

Value tojson(V value, A arguments) {
  const Given given("tojson", arguments);
  JsonStyle style;
  style.indent = static_cast<int>(std::clamp<std::int64_t>(given.integer(9, "indent", -1), -1, 64));
  style.item_separator = style.indent < 0 ? ", " : ",";
  if (arguments.positional.size() == 1) {
    throw_problem("tojson takes its arguments by name here");
  }
  if (const Value* separators = given.find(9, "separators"); separators && !separators->is_none()) {
    const std::vector<Value> both = elements_of(*separators);
    if (both.size() != 2 || !both[0].text() || !both[1].text()) {
      throw_problem("tojson: separators are two texts");
    }
    style.item_separator = both[0].text()->bytes;
    style.key_separator = both[1].text()->bytes;
  }
  style.sort_keys = given.flag(9, "sort_keys", false);
  style.ascii = given.flag(9, "ensure_ascii", false);
  return to_json(value, style);
}

// What `attribute=` means: names and numbers with dots between.
Value attribute_path(V value, const std::string& path) {
  Value result = value;
  for (std::size_t begin = 0; begin <= path.size();) {
    const std::size_t end = std::min(path.size(), path.find('.', begin));
    count_text(end - begin);
    const std::string name = path.substr(begin, end - begin);
    const bool is_number = !name.empty() && name.size() < 10 &&
                           name.find_first_not_of("0123456789") == std::string::npos;
    result = item_of(
        result, is_number ? Value(static_cast<std::int64_t>(std::stoll(name))) : Value::text(name));
    begin = end + 1;
  }
  return result;
}

Arguments rest_of(A arguments, std::size_t first) {
  Arguments rest = arguments;
  rest.positional.erase(rest.positional.begin(),
                        rest.positional.begin() +
                            static_cast<std::ptrdiff_t>(std::min(first, rest.positional.size())));
  return rest;
}

// These filters take what is false for nothing.
std::vector<Value> if_any(V value) {
  return truth(value) ? elements_of(value) : std::vector<Value>{};
}

// select, reject, selectattr, rejectattr.
Value chosen(V value, A arguments, bool by_attribute, bool keep) {
  const Given given("select", arguments);
  const std::string path = by_attribute ? given.text(0, "attribute").bytes : "";
  const std::size_t at = by_attribute ? 1 : 0;
  const bool has_test = arguments.positional.size() > at;
  const std::string test = has_test ? given.text(at, "test").bytes : "";
  const Arguments of_test = rest_of(arguments, at + 1);
  std::vector<Value> kept;
  for (const Value& element : if_any(value)) {
    const Value looked_at = by_attribute ? attribute_path(element, path) : element;
    const bool holds = has_test ? apply_test(test, looked_at, of_test) : truth(looked_at);
    if (holds == keep) kept.push_back(element);
  }
  return Value::generator(std::move(kept));
}

Value mapped(V value, A arguments) {
  const Given given("map", arguments);
  std::vector<Value> results;
  if (arguments.positional.empty()) {
    const std::string path = given.text(9, "attribute").bytes;
    const Value* missing = given.find(9, "default");
    for (const Value& element : if_any(value)) {
      Value result = attribute_path(element, path);
      results.push_back(result.is_undefined() && missing ? *missing : result);
    }
  } else {
    const std::string filter = given.text(0, "filter").bytes;
    const Arguments of_filter = rest_of(arguments, 1);
    for (const Value& element : if_any(value)) {
      results.push_back(apply_filter(filter, element, of_filter));
    }
  }
  return Value::generator(std::move(results));
}

Value joined(V value, A arguments) {
  const Given given("join", arguments);
  const Value* between = given.find(0, "d");
  const Value* attribute = given.find(1, "attribute");
  MarkedText out;
  bool first = true;
  for (const Value& element : elements_of(value)) {
    if (!first && between) out.append(to_text(*between));
    first = false;
    out.append(to_text(attribute && attribute->text()
                           ? attribute_path(element, attribute->text()->bytes)
                           : element));
  }
  return out;
}

// Text compares without case unless asked otherwise.
Value sort_key(V value, bool case_sensitive) {
  return value.text() && !case_sensitive ? Value(with_letters(*value.text(), Letters::kLower))
                                         : value;
}

using Key = std::function<Value(V)>;

void sort_values(std::vector<Value>& values, const Key& key, bool reverse) {
  std::vector<std::pair<Value, Value>> keyed;
  for (Value& value : values) keyed.emplace_back(key(value), std::move(value));
  std::stable_sort(keyed.begin(), keyed.end(), [&](const auto& a, const auto& b) {
    return reverse ? less(b.first, a.first) : less(a.first, b.first);
  });
  for (std::size_t i = 0; i < values.size(); ++i) values[i] = std::move(keyed[i].second);
}

// By the filter's arguments case_sensitive, the one at `place`, and attribute, the one after it.
Key compared_by(const Given& given, std::size_t place) {
  const bool case_sensitive = given.flag(place, "case_sensitive", false);
  const Value* attribute = given.find(place + 1, "attribute");
  return [attribute, case_sensitive](V element) {
    const bool by_attribute = attribute && attribute->text();
    return sort_key(by_attribute ? attribute_path(element, attribute->text()->bytes) : element,
                    case_sensitive);
  };
}

Value sorted(V value, A arguments) {
  const Given given("sort", arguments);
  std::vector<Value> values = elements_of(value);
  sort_values(values, compared_by(given, 1), given.flag(0, "reverse", false));
  return Value::list(std::move(values));
}

Value dictsort(V value, A arguments) {
  const Given given("dictsort", arguments);
  if (!value.dict()) throw_problem("dictsort takes a dictionary");
  const Value* by = given.find(1, "by");
  const std::size_t part = by && by->text() && by->text()->bytes == "value" ? 1 : 0;
  std::vector<Value> items = method_of(value, "items")->call({}).list()->items;
  const bool case_sensitive = given.flag(0, "case_sensitive", false);
  const auto key = [&](V item) { return sort_key(item.list()->items[part], case_sensitive); };
  sort_values(items, key, given.flag(2, "reverse", false));
  return Value::list(std::move(items));
}

Value unique(V value, A arguments) {
  const Given given("unique", arguments);
  const Key key_of = compared_by(given, 0);
  std::vector<Value> kept, keys;
  for (const Value& element : elements_of(value)) {
    const Value key = key_of(element);
    if (std::any_of(keys.begin(), keys.end(), [&](V other) { return equal(other, key); })) continue;
    keys.push_back(key);
    kept.push_back(element);
  }
  return Value::generator(std::move(kept));
}

Value extreme(V value, A arguments, bool most) {
  const Given given(most ? "max" : "min", arguments);
  const Key key_of = compared_by(given, 0);
  std::optional<Value> best, best_key;
  for (const Value& element : elements_of(value)) {
    const Value key = key_of(element);
    if (best && !(most ? less(*best_key, key) : less(key, *best_key))) continue;
    best = element;
    best_key = key;
  }
  return best ? *best : Value(Undefined{"the least or most of nothing"});
}

Value indented(V value, A arguments) {
  const Given given("indent", arguments);
  const Value* width = given.find(0, "width");
  MarkedText by(width && width->text()
                    ? width->text()->bytes
                    : std::string(static_cast<std::size_t>(std::clamp<std::int64_t>(
                                      given.integer(0, "width", 4), 0, 1000)),
                                  ' '));
  const bool first = given.flag(1, "first", false), blank = given.flag(2, "blank", false);
  const MarkedText text = to_text(value);
  MarkedText out;
  for (std::size_t begin = 0; begin <= text.size();) {
    const std::size_t end = std::min(text.size(), text.bytes.find('\n', begin));
    const bool is_blank = end == begin;
    if ((begin > 0 || first) && (blank || !is_blank)) out.append(by);
    out.append(text.part(begin, end + 1 - begin));
    begin = end + 1;
  }
  return out;
}

Value to_integer(V value, A arguments) {
  const std::int64_t missing = Given("int", arguments).integer(0, "default", 0);
  if (value.is_integer()) return value.integer();
  if (const double* number = value.get<double>()) {
    return std::abs(*number) < 9e18 ? static_cast<std::int64_t>(*number) : missing;
  }
  if (!value.text()) return missing;
  const MarkedText text = stripped(*value.text(), {}, true, true);
  double number = 0.0;
  const auto result = std::from_chars(text.bytes.data(), text.bytes.data() + text.size(), number);
  const bool whole = result.ec == std::errc{} && result.ptr == text.bytes.data() + text.size();
  return whole && std::abs(number) < 9e18 ? static_cast<std::int64_t>(number) : missing;
}

Value to_float(V value, A arguments) {
  const Value* missing = Given("float", arguments).find(0, "default");
  if (value.is_number()) return value.number();
  double number = 0.0;
  if (value.text()) {
    const std::string& text = value.text()->bytes;
    const auto result = std::from_chars(text.data(), text.data() + text.size(), number);
    if (result.ec == std::errc{} && result.ptr == text.data() + text.size()) return number;
  }
  return missing ? *missing : Value(0.0);
}

Value escaped(V value, A) {
  const MarkedText text = to_text(value);
  MarkedText out;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const char c = text.bytes[i];
    const auto mark = static_cast<std::uint8_t>(text.marks[i]);
    const std::string_view meant = c == '&'    ? "&amp;"
                                   : c == '<'  ? "&lt;"
                                   : c == '>'  ? "&gt;"
                                   : c == '"'  ? "&#34;"
                                   : c == '\'' ? "&#39;"
                                               : std::string_view(&text.bytes[i], 1);
    out.append(meant, mark);
  }
  return out;
}

Value summed(V value, A) {
  Value sum = std::int64_t{0};
  for (const Value& element : elements_of(value)) {
    if (!element.is_number()) throw_problem("sum of a {}", type_name(element));
    std::int64_t whole = 0;
    if (!sum.is_integer() || !element.is_integer()) {
      sum = sum.number() + element.number();
    } else if (__builtin_add_overflow(sum.integer(), element.integer(), &whole)) {
      throw_problem("a number grows beyond 64 bits");
    } else {
      sum = whole;
    }
  }
  return sum;
}

Value reversed(V value, A) {
  std::vector<Value> elements = elements_of(value);
  std::reverse(elements.begin(), elements.end());
  if (!value.text()) return Value::generator(std::move(elements));
  MarkedText out;
  for (const Value& character : elements) out.append(*character.text());
  return out;
}

Value end_of(V value, bool first) {
  const List* list = value.list();
  if (list && !list->items.empty()) return first ? list->items.front() : list->items.back();
  const std::vector<Value> elements = elements_of(value);
  if (elements.empty()) return Undefined{"an end of nothing"};
  return first ? elements.front() : elements.back();
}

using Filter = Value (*)(V, A);
const std::map<std::string_view, Filter> kFilters = {
    {"tojson", tojson},
    {"length", [](V v, A) { return Value(length_of(v)); }},
    {"count", [](V v, A) { return Value(length_of(v)); }},
    {"trim",
     [](V v, A a) {
       const Value* characters = Given("trim", a).find(0, "chars");
       return Value(stripped(to_text(v),
                             characters && characters->text() ? characters->text()->view() : "",
                             true, true));
     }},
    {"string", [](V v, A) { return Value(to_text(v)); }},
    {"default",
     [](V v, A a) {
       const Given given("default", a);
       const Value* missing = given.find(0, "default_value");
       const bool use = v.is_undefined() || (given.flag(1, "boolean", false) && !truth(v));
       return !use ? v : missing ? *missing : Value::text("");
     }},
    {"join", joined},
    {"items",
     [](V v, A) {
       if (v.is_undefined()) return Value::generator({});
       if (!v.dict()) throw_problem("items of a {}", type_name(v));
       return Value::generator(elements_of(method_of(v, "items")->call({})));
     }},
    {"list", [](V v, A) { return Value::list(elements_of(v)); }},
    {"select", [](V v, A a) { return chosen(v, a, false, true); }},
    {"reject", [](V v, A a) { return chosen(v, a, false, false); }},
    {"selectattr", [](V v, A a) { return chosen(v, a, true, true); }},
    {"rejectattr", [](V v, A a) { return chosen(v, a, true, false); }},
    {"map", mapped},
    {"safe",
     [](V v, A) {
       MarkedText text = to_text(v);
       text.is_safe = true;
       return Value(std::move(text));
     }},
    {"upper", [](V v, A) { return Value(with_letters(to_text(v), Letters::kUpper)); }},
    {"lower", [](V v, A) { return Value(with_letters(to_text(v), Letters::kLower)); }},
    {"title", [](V v, A) { return Value(with_letters(to_text(v), Letters::kTitle)); }},
    {"capitalize", [](V v, A) { return Value(with_letters(to_text(v), Letters::kCapitalize)); }},
    {"first", [](V v, A) { return end_of(v, true); }},
    {"last", [](V v, A) { return end_of(v, false); }},
    {"int", to_integer},
    {"float", to_float},
    {"abs",
     [](V v, A) {
       if (!v.is_number()) throw_problem("abs of a {}", type_name(v));
       if (!v.is_integer()) return Value(std::abs(v.number()));
       if (v.integer() == INT64_MIN) throw_problem("a number grows beyond 64 bits");
       return Value(std::abs(v.integer()));
     }},
    {"replace",
     [](V v, A a) {
       const Given given("replace", a);
       return Value(replaced(to_text(v), to_text(given.require(0, "old")),
                             to_text(given.require(1, "new")), given.integer(2, "count", -1)));
     }},
    {"reverse", reversed},
    {"sort", sorted},
    {"dictsort", dictsort},
    {"unique", unique},
    {"min", [](V v, A a) { return extreme(v, a, false); }},
    {"max", [](V v, A a) { return extreme(v, a, true); }},
    {"sum", summed},
    {"indent", indented},
    {"escape", escaped},
    {"e", escaped},
};

std::string_view full_name(std::string_view filter) {
  return filter == "d" ? "default" : filter;
}

}  // namespace

bool is_filter(std::string_view name) {
  return kFilters.contains(full_name(name));
}

Value apply_filter(std::string_view name, const Value& value, const Arguments& arguments) {
  if (!is_filter(name)) throw_problem("the filter \"{}\" isn't supported", name.substr(0, 64));
  const Deeper deeper;  // one that applies another
  count_steps();
  return kFilters.at(full_name(name))(value, arguments);
}

}  // namespace sherd::templates
