#include "engine/data/template/json_value.h"

#include <nlohmann/json.hpp>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

namespace sherd::templates {
namespace {

using Json = nlohmann::json;

// Deeper than this is no conversation, and recursion would follow it.
constexpr std::size_t kMostDeep = 100;
constexpr std::int64_t kMostValues = 1 << 24;

/// Receives the values from the parser. If a key occurs twice, the last value replaces the first
/// one in its place, as in Python.
class Reader {
 public:
  Reader(std::uint8_t mark, bool row) : mark_(mark), row_(row) {}

  Value result;
  std::string error;

  bool null() { return put(None{}); }
  bool boolean(bool value) { return put(value); }
  bool number_integer(std::int64_t value) { return put(value); }
  bool number_unsigned(std::uint64_t value) {
    return value <= INT64_MAX ? put(static_cast<std::int64_t>(value))
                              : large(static_cast<double>(value));
  }
  bool number_float(double value, const std::string& text) {
    const bool is_whole = text.find_first_of(".eE") == std::string::npos;
    return is_whole ? large(value) : put(value);
  }
  bool string(std::string& value) { return put(MarkedText(std::move(value), mark_)); }
  bool binary(Json::binary_t&) { return false; }
  bool start_object(std::size_t) { return open(std::make_shared<Dict>()); }
  bool start_array(std::size_t) { return open(nullptr); }
  bool key(std::string& name) {
    open_.back().key = std::move(name);
    return true;
  }
  bool end_object() {
    Value value = std::move(open_.back().dict);
    open_.pop_back();
    return put(std::move(value));
  }
  bool end_array() {
    Value value = Value::list(std::move(open_.back().items));
    open_.pop_back();
    return put(std::move(value));
  }
  bool parse_error(std::size_t, const std::string&, const Json::exception& exception) {
    error = exception.what();
    return false;
  }

 private:
  bool large(double value) {
    const bool is_field = open_.size() == 1 && open_[0].dict;
    if (row_ && is_field) return put(value);
    error = "a whole number of more than 63 bits";
    return false;
  }

  struct Open {
    std::shared_ptr<Dict> dict;  ///< null: a list
    std::vector<Value> items;
    std::string key;
    std::unordered_map<std::string, std::size_t> places;  ///< of the keys
  };

  bool open(std::shared_ptr<Dict> dict) {
    if (open_.size() > kMostDeep) throw_problem("JSON is nested deeper than {}", kMostDeep);
    open_.push_back({std::move(dict), {}, {}, {}});
    return true;
  }
  bool put(Value value) {
    if (++num_values_ > kMostValues) throw_problem("JSON of more than {} values", kMostValues);
    if (open_.empty()) {
      result = std::move(value);
      return true;
    }
    Open& around = open_.back();
    if (!around.dict) {
      around.items.push_back(std::move(value));
      return true;
    }
    const auto [place, is_new] = around.places.try_emplace(around.key, around.dict->items.size());
    if (is_new) {
      around.dict->add(MarkedText(std::move(around.key), mark_), std::move(value));
    } else {
      around.dict->items[place->second].second = std::move(value);
    }
    return true;
  }

  std::uint8_t mark_;
  bool row_;
  std::vector<Open> open_;
  std::int64_t num_values_ = 0;
};

}  // namespace

Value value_of_json(std::string_view json, std::uint8_t mark, bool row) {
  Reader reader(mark, row);
  if (Json::sax_parse(json, &reader)) return std::move(reader.result);
  const std::size_t text = reader.error.find("] ");
  throw_problem("not JSON: {}",
                text == std::string::npos ? reader.error : reader.error.substr(text + 2));
}

Value with_mark(const Value& value, std::uint8_t mark) {
  if (const MarkedText* text = value.text()) {
    MarkedText marked = *text;
    for (char& of_byte : marked.marks) of_byte = static_cast<char>(of_byte | mark);
    return marked;
  }
  if (const List* list = value.list()) {
    std::vector<Value> items;
    for (const Value& item : list->items) items.push_back(with_mark(item, mark));
    return Value::list(std::move(items), list->is_tuple);
  }
  if (const Dict* dict = value.dict()) {
    auto copy = std::make_shared<Dict>();
    copy->is_namespace = dict->is_namespace;
    for (const auto& [key, item] : dict->items) {
      copy->add(with_mark(key, mark), with_mark(item, mark));
    }
    return copy;
  }
  return value;
}

}  // namespace sherd::templates
