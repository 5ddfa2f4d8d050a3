#include "engine/data/template/json_value.h"

#include <nlohmann/json.hpp>

namespace sherd::templates {
namespace {

using Json = nlohmann::ordered_json;

Value convert(const Json& json, std::uint8_t mark) {
  switch (json.type()) {
    case Json::value_t::string:
      return MarkedText(json.get<std::string>(), mark);
    case Json::value_t::boolean:
      return json.get<bool>();
    case Json::value_t::number_integer:
      return json.get<std::int64_t>();
    case Json::value_t::number_unsigned:
      if (json.get<std::uint64_t>() <= INT64_MAX) return json.get<std::int64_t>();
      return json.get<double>();
    case Json::value_t::number_float:
      return json.get<double>();
    case Json::value_t::array: {
      std::vector<Value> items;
      for (const Json& item : json) items.push_back(convert(item, mark));
      return Value::list(std::move(items));
    }
    case Json::value_t::object: {
      auto dict = std::make_shared<Dict>();
      for (const auto& [key, value] : json.items()) {
        dict->items.emplace_back(MarkedText(key, mark), convert(value, mark));
      }
      return dict;
    }
    default:
      return None{};
  }
}

}  // namespace

Value value_of_json(std::string_view json, std::uint8_t mark) {
  // Deeper than this is no conversation, and recursion would follow it.
  constexpr int kMostDeep = 100;
  const auto watch = [&](int depth, Json::parse_event_t, Json&) {
    if (depth > kMostDeep) throw_problem("JSON is nested deeper than {}", kMostDeep);
    return true;
  };
  try {
    return convert(Json::parse(json, watch), mark);
  } catch (const Json::exception& error) {
    const std::string_view what = error.what();
    const std::size_t text = what.find("] ");
    throw_problem("not JSON: {}", text == std::string_view::npos ? what : what.substr(text + 2));
  }
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
      copy->items.emplace_back(with_mark(key, mark), with_mark(item, mark));
    }
    return copy;
  }
  return value;
}

}  // namespace sherd::templates
