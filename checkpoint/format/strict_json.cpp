#include "checkpoint/format/strict_json.h"

#include <fmt/core.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>
#include <type_traits>
#include <unordered_set>
#include <utility>
#include <vector>

#include "core/error.h"

namespace sherd::checkpoint {
namespace {

using nlohmann::json;

// Builds the values itself, because nlohmann's parser is slow here. With a callback it scans a
// whole object or array at the end of each object inside. With ordered keys it scans all keys at
// each new one.
template <class Json>
class Builder {
 public:
  explicit Builder(const std::string& file) : file_(file) {}

  Json result;
  std::optional<std::size_t> wrong_byte;  ///< where it stops being JSON

  bool null() { return put(nullptr); }
  bool boolean(bool value) { return put(value); }
  bool number_integer(std::int64_t value) { return put(value); }
  bool number_unsigned(std::uint64_t value) { return put(value); }
  bool number_float(double value, const std::string&) { return put(value); }
  bool string(std::string& value) { return put(std::move(value)); }
  bool binary(typename Json::binary_t&) { return false; }
  bool start_object(std::size_t) { return open(Json::object()); }
  bool start_array(std::size_t) { return open(Json::array()); }
  bool end_object() { return close(); }
  bool end_array() { return close(); }
  bool key(std::string& name) {
    Open& object = open_.back();
    if (!is_new(object, name)) {
      throw DataError("{}: the key \"{}\" appears twice in one object", file_, printable(name));
    }
    object.key = std::move(name);
    return true;
  }
  bool parse_error(std::size_t, const std::string&, const json::exception& error) {
    const auto* const syntax = dynamic_cast<const json::parse_error*>(&error);
    if (syntax) wrong_byte = syntax->byte;
    return false;
  }

 private:
  static constexpr bool kSorts = std::is_same_v<Json, json>;
  struct Open {
    Json* value;  ///< stays where it is as long as it is open: nothing is added around it
    std::string key{};
    std::unordered_set<std::string> keys{};  ///< where they aren't sorted
  };

  static bool is_new(Open& object, const std::string& name) {
    if constexpr (kSorts) return !object.value->contains(name);
    return object.keys.insert(name).second;
  }
  void count() {
    if (++values_ > kMaxJsonValues) {
      throw DataError("{}: more than {} JSON values", file_, kMaxJsonValues);
    }
  }
  Json* add(Json value) {
    count();
    if (open_.empty()) {
      result = std::move(value);
      return &result;
    }
    Open& around = open_.back();
    if (around.value->is_array()) return &around.value->emplace_back(std::move(value));
    auto& members = around.value->template get_ref<typename Json::object_t&>();
    if constexpr (kSorts) {
      return &members.emplace(std::move(around.key), std::move(value)).first->second;
    } else {
      return &members.emplace_back(std::move(around.key), std::move(value)).second;
    }
  }
  bool put(Json value) {
    add(std::move(value));
    return true;
  }
  bool open(Json value) {
    Json* const added = add(std::move(value));
    if (std::ssize(open_) == kMaxJsonDepth) {
      throw DataError("{}: JSON nested deeper than {} levels", file_, kMaxJsonDepth);
    }
    open_.push_back({added});
    return true;
  }
  bool close() {
    open_.pop_back();
    return true;
  }

  const std::string& file_;
  std::int64_t values_ = 0;
  std::vector<Open> open_;
};

template <class Json>
Json parse_as(std::string_view text, const std::string& file) {
  // The parser would skip a byte order mark.
  if (text.starts_with('\xef')) throw DataError("{}: isn't JSON: it begins with byte 0xef", file);
  // The parser would take a zero byte for the end and leave the rest unread.
  if (const std::size_t zero = text.find('\0'); zero != std::string_view::npos) {
    throw DataError("{}: isn't JSON: byte {} is zero", file, zero);
  }
  Builder<Json> builder(file);
  if (Json::sax_parse(text, &builder)) return std::move(builder.result);
  if (!builder.wrong_byte) throw DataError("{}: holds a number too large for a double", file);
  // Not what the parser says: it quotes the text.
  throw DataError("{}: isn't JSON from byte {} of {} on", file, *builder.wrong_byte, text.size());
}

}  // namespace

json parse_strict(std::string_view text, const std::string& file) {
  return parse_as<json>(text, file);
}

nlohmann::ordered_json parse_strict_ordered(std::string_view text, const std::string& file) {
  return parse_as<nlohmann::ordered_json>(text, file);
}

std::string printable(std::string_view text) {
  constexpr std::size_t kMostShown = 77;
  std::string shown(text.substr(0, kMostShown));
  std::replace_if(
      shown.begin(), shown.end(), [](char c) { return c < ' ' || c > '~'; }, '?');
  return text.size() > kMostShown ? shown + "..." : shown;
}

bool parse_checksum(std::string_view text, std::uint64_t& value) {
  if (text.size() != 16) return false;
  std::uint64_t parsed = 0;
  for (const char c : text) {
    if (c >= '0' && c <= '9') {
      parsed = parsed << 4 | static_cast<std::uint64_t>(c - '0');
    } else if (c >= 'a' && c <= 'f') {
      parsed = parsed << 4 | static_cast<std::uint64_t>(c - 'a' + 10);
    } else {
      return false;
    }
  }
  value = parsed;
  return true;
}

void JsonNode::expect_members(std::initializer_list<std::string_view> keys) const {
  if (!value_->is_object()) refuse("isn't an object");
  for (const std::string_view key : keys) {
    if (!value_->contains(key)) refuse(fmt::format("lacks the key \"{}\"", key));
  }
  if (value_->size() == keys.size()) return;
  for (const auto& [key, value] : value_->items()) {
    if (std::find(keys.begin(), keys.end(), key) == keys.end()) {
      refuse(fmt::format("has the unknown key \"{}\"", printable(key)));
    }
  }
}

JsonNode JsonNode::member(const char* key) const {
  if (!value_->is_object()) refuse("isn't an object");
  const auto found = value_->find(key);
  if (found == value_->end()) refuse(fmt::format("lacks the key \"{}\"", key));
  return child(*found, {key, 0});
}

std::size_t JsonNode::size() const {
  if (!value_->is_array()) refuse("isn't an array");
  return value_->size();
}

JsonNode JsonNode::element(std::size_t index) const {
  SHERD_CHECK(index < size(), "element {} of {} in {}", index, value_->size(), *file_);
  return child((*value_)[index], {nullptr, index});
}

std::int64_t JsonNode::integer(std::int64_t minimum, std::int64_t maximum) const {
  // Every whole number without a sign, fraction or exponent that 64 bits hold arrives as unsigned;
  // all others are refused.
  if (!value_->is_number_unsigned()) {
    const std::string found = value_->is_number() ? value_->dump() : value_->type_name();
    refuse(fmt::format("is {}; expected a whole number from {} to {}", found, minimum, maximum));
  }
  const auto found = value_->get<std::uint64_t>();
  if (found < static_cast<std::uint64_t>(minimum) || found > static_cast<std::uint64_t>(maximum)) {
    refuse(fmt::format("is {}; expected a whole number from {} to {}", found, minimum, maximum));
  }
  return static_cast<std::int64_t>(found);
}

const std::string& JsonNode::text() const {
  if (!value_->is_string()) refuse(fmt::format("is {}; expected text", value_->type_name()));
  return value_->get_ref<const std::string&>();
}

std::uint64_t JsonNode::checksum() const {
  std::uint64_t value = 0;
  if (!parse_checksum(text(), value)) {
    refuse(fmt::format("is \"{}\"; expected 16 lower-case hex digits", printable(text())));
  }
  return value;
}

bool JsonNode::boolean() const {
  if (!value_->is_boolean()) {
    refuse(fmt::format("is {}; expected true or false", value_->type_name()));
  }
  return value_->get<bool>();
}

const json& JsonNode::object() const {
  if (!value_->is_object()) refuse("isn't an object");
  return *value_;
}

void JsonNode::refuse(const std::string& complaint) const {
  throw DataError("{}: {} {}", *file_, path(), complaint);
}

JsonNode JsonNode::child(const json& value, Step step) const {
  SHERD_CHECK(depth_ < steps_.size(), "{} is walked deeper than its format is", *file_);
  JsonNode node = *this;
  node.value_ = &value;
  node.steps_[node.depth_++] = step;
  return node;
}

std::string JsonNode::path() const {
  if (depth_ == 0) return "the outermost value";
  std::string path;
  for (std::size_t i = 0; i < depth_; ++i) {
    if (!steps_[i].key) {
      path += fmt::format("[{}]", steps_[i].index);
    } else {
      path += path.empty() ? steps_[i].key : fmt::format(".{}", steps_[i].key);
    }
  }
  return path;
}

}  // namespace sherd::checkpoint
