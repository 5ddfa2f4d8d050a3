/// What a template may call: filters, tests and methods, with their names in Jinja and Python.
#pragma once

#include <array>
#include <functional>
#include <optional>
#include <string_view>

#include "engine/data/template/value.h"

namespace sherd::templates {

bool is_filter(std::string_view name);
bool is_test(std::string_view name);

/// Errors   Problem: an invalid argument, or something unsupported
Value apply_filter(std::string_view name, const Value& value, const Arguments& arguments);
bool apply_test(std::string_view name, const Value& value, const Arguments& arguments);

/// A method of a text, a list or a dictionary; null if it has no such method.
std::shared_ptr<const Callable> method_of(const Value& value, std::string_view name);

/// `value.name` and `value[key]`.
Value attribute_of(const Value& value, const std::string& name);
Value item_of(const Value& value, const Value& key);
/// What a loop iterates over: the elements of a list, the keys of a dictionary, characters.
std::vector<Value> elements_of(const Value& value);
bool contains(const Value& container, const Value& value);
/// `value[first:end:step]`, of a text or a list.
using SliceBounds = std::array<std::optional<std::int64_t>, 3>;
Value slice_of(const Value& value, const SliceBounds& bounds);

/// The first position of `part` in `text` at or after `from`, or npos. Always linear time.
std::size_t find_text(std::string_view text, std::string_view part, std::size_t from = 0);

/// Arguments by position or by name.
class Given {
 public:
  Given(std::string_view function, const Arguments& arguments)
      : function_(function), arguments_(arguments) {}
  /// The argument at position `place` or named `name`; null if it is missing.
  const Value* find(std::size_t place, std::string_view name) const;
  const Value& require(std::size_t place, std::string_view name) const;
  const MarkedText& text(std::size_t place, std::string_view name) const;
  std::int64_t integer(std::size_t place, std::string_view name, std::int64_t missing) const;
  bool flag(std::size_t place, std::string_view name, bool missing) const;
  /// Refuses more than `count` positional arguments.
  void at_most(std::size_t count) const;

 private:
  std::string_view function_;
  const Arguments& arguments_;
};

/// A method of texts, by Python's name; null if it isn't supported.
using TextMethod = std::function<Value(const MarkedText&, const Given&, const Arguments&)>;
const TextMethod* text_method(std::string_view name);

/// Python's text methods that filters also use. `characters`: those to remove; empty: white space.
MarkedText stripped(const MarkedText& text, std::string_view characters, bool left, bool right);
MarkedText replaced(const MarkedText& text, const MarkedText& from, const MarkedText& to,
                    std::int64_t count);
enum class Letters { kUpper, kLower, kTitle, kCapitalize };
MarkedText with_letters(const MarkedText& text, Letters letters);

}  // namespace sherd::templates
