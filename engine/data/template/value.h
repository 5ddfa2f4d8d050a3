/// The values of templates: Python's values, as far as templates can see them.
///
/// Lists and dictionaries are shared. Only an assignment to a namespace changes one, as in Hugging
/// Face's sandbox.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "engine/data/template/marked_text.h"

namespace sherd::templates {

class Value;
class GrowingMessages;

struct Undefined {
  std::string name;  ///< what was missing, for messages
};
struct None {};
struct List {
  std::vector<Value> items;
  bool is_tuple = false;
  bool is_generator = false;  ///< from a filter: true even if empty, and has no length
  int depth = 1;              ///< one more than the depth of its deepest element
  /// Set for the messages in a rendering of all prefixes (growing.h) and for slices of them;
  /// `first`: index of the slice's first message.
  GrowingMessages* watched_by = nullptr;
  std::size_t first = 0;
};
struct Dict;
struct Callable;

/// Arguments of a call: positional ones in order, then named ones.
struct Arguments {
  std::vector<Value> positional;
  std::vector<std::pair<std::string, Value>> named;
  int line = 0;
};

class Value {
 public:
  using Text = std::shared_ptr<const MarkedText>;
  using Variant =
      std::variant<Undefined, None, bool, std::int64_t, double, Text, std::shared_ptr<const List>,
                   std::shared_ptr<Dict>, std::shared_ptr<const Callable>>;

  Value() : data_(Undefined{}) {}
  Value(Undefined undefined) : data_(std::move(undefined)) {}    // NOLINT: a value is what it holds
  Value(None none) : data_(none) {}                              // NOLINT
  Value(bool flag) : data_(flag) {}                              // NOLINT
  Value(std::int64_t number) : data_(number) {}                  // NOLINT
  Value(double number) : data_(number) {}                        // NOLINT
  Value(MarkedText text);                                        // NOLINT
  Value(std::shared_ptr<Dict> dict) : data_(std::move(dict)) {}  // NOLINT
  Value(std::shared_ptr<const Callable> function) : data_(std::move(function)) {}  // NOLINT
  /// Text from the template itself.
  static Value text(std::string bytes) { return MarkedText(std::move(bytes)); }
  static Value list(std::vector<Value> items, bool is_tuple = false);
  static Value generator(std::vector<Value> items);
  static Value of(std::shared_ptr<const List> list);

  template <class T>
  const T* get() const {
    return std::get_if<T>(&data_);
  }
  bool is_undefined() const { return get<Undefined>() != nullptr; }
  bool is_none() const { return get<None>() != nullptr; }
  const MarkedText* text() const {
    const Text* text = get<Text>();
    return text ? text->get() : nullptr;
  }
  /// An access through this function may reveal the list's length.
  const List* list() const {
    const List* list = unwatched_list();
    if (list && list->watched_by) look_at(*list);
    return list;
  }
  const List* unwatched_list() const {
    const auto* list = get<std::shared_ptr<const List>>();
    return list ? list->get() : nullptr;
  }
  Dict* dict() const {
    const auto* dict = get<std::shared_ptr<Dict>>();
    return dict ? dict->get() : nullptr;
  }
  const Callable* callable() const {
    const auto* function = get<std::shared_ptr<const Callable>>();
    return function ? function->get() : nullptr;
  }
  bool is_number() const { return get<bool>() || get<std::int64_t>() || get<double>(); }
  /// A bool counts as 0 or 1.
  bool is_integer() const { return get<bool>() || get<std::int64_t>(); }
  std::int64_t integer() const;
  double number() const;
  /// Nesting depth of lists, dictionaries and values that hold some; 0 for other values.
  int depth() const;

 private:
  static Value held(List list);
  static void look_at(const List& list);
  Variant data_;
};

/// The depth of a container that holds `value`. Problem: deeper than kMostNested.
int depth_around(const Value& value);

struct Dict {
  std::vector<std::pair<Value, Value>> items;
  bool is_namespace = false;  ///< or another object that has only attributes
  bool can_change = false;    ///< a namespace
  int depth = 1;
  static constexpr std::size_t kEmptyBytes = sizeof(std::vector<Value>) + 64;
  Held held{kEmptyBytes};

  const Value* find(const Value& key) const;
  const Value* named(std::string_view key) const;  ///< find, for a text key
  void set(const Value& key, Value value);
  void add(Value key, Value value);  ///< set, for a new key
  /// Restores earlier contents (journal.h).
  void put_back(std::vector<std::pair<Value, Value>> before, int depth_before);
};

struct Callable {
  std::string name;
  std::function<Value(const Arguments&)> call;
  int depth = 1;
  Held held{256};
};

bool truth(const Value& value);
/// Python's ==. Marks are ignored.
bool equal(const Value& a, const Value& b);
/// Python's < for two numbers, texts or lists; for others, a Problem that names the types.
bool less(const Value& a, const Value& b);
/// Python's name of the type: "str", "dict", ...
std::string type_name(const Value& value);

/// Python's str() and repr().
MarkedText to_text(const Value& value);
MarkedText to_repr(const Value& value);

struct JsonStyle {
  int indent = -1;  ///< negative: all on one line
  std::string item_separator, key_separator = ": ";
  bool sort_keys = false;
  bool ascii = false;
};
/// Python's json.dumps.
MarkedText to_json(const Value& value, const JsonStyle& style);

/// Number of code points; Python counts and slices text by code points.
std::int64_t num_characters(const MarkedText& text);
/// The end of the character that begins at `begin`.
std::size_t character_end(const MarkedText& text, std::size_t begin);

}  // namespace sherd::templates
