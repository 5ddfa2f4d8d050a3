/// Strict parsing of JSON from a file that may be damaged or malicious.
///
/// `parse_strict` limits nesting and the number of values while it parses, and refuses duplicate
/// keys. Its allocations are bounded by the text's length, never by a number in the text.
/// `JsonNode` then walks the values. Every access states what it expects; anything else is a
/// DataError that names the file and the key ("manifest.json: shards[3].bytes is -1; expected 0 to
/// ...").
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>

namespace sherd::checkpoint {

inline constexpr int kMaxJsonDepth = 32;
inline constexpr std::int64_t kMaxJsonValues = 1 << 24;
inline constexpr std::int64_t kMaxJsonInteger = std::int64_t{1} << 53;  ///< exact in every reader

/// Linear in the text, for any number of objects and keys (n log n where keys are sorted).
/// Errors   DataError where the text isn't one JSON value within the limits above.
nlohmann::json parse_strict(std::string_view text, const std::string& file);
/// The same, with keys in the text's order.
nlohmann::ordered_json parse_strict_ordered(std::string_view text, const std::string& file);

/// Text from a file as part of a message: one line, plain ASCII, at most 80 characters.
std::string printable(std::string_view text);

/// A value inside a parsed text, and the path to it. Both must outlive the node.
class JsonNode {
 public:
  JsonNode(const nlohmann::json& value, const std::string& file) : value_(&value), file_(&file) {}

  /// For an object. It must have exactly these keys.
  void expect_members(std::initializer_list<std::string_view> keys) const;
  JsonNode member(const char* key) const;
  /// For an array.
  std::size_t size() const;
  JsonNode element(std::size_t index) const;

  std::int64_t integer(std::int64_t minimum, std::int64_t maximum = kMaxJsonInteger) const;
  const std::string& text() const;
  std::uint64_t checksum() const;  ///< 16 lower-case hex digits
  bool boolean() const;
  const nlohmann::json& object() const;  ///< unchecked, whatever it contains

  /// Throws "<file>: <path> <complaint>".
  [[noreturn]] void refuse(const std::string& complaint) const;
  const std::string& file() const { return *file_; }

 private:
  struct Step {
    const char* key = nullptr;  ///< nullptr: an index
    std::size_t index = 0;
  };
  JsonNode child(const nlohmann::json& value, Step step) const;
  std::string path() const;

  const nlohmann::json* value_;
  const std::string* file_;
  std::array<Step, 6> steps_{};
  std::size_t depth_ = 0;
};

/// Reads 16 lower-case hex digits. If `text` is anything else, returns false and leaves `value`
/// unchanged.
bool parse_checksum(std::string_view text, std::uint64_t& value);

}  // namespace sherd::checkpoint
