// JSON of strangers: limits, and time that grows with the text alone.
#include "checkpoint/format/strict_json.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "core/error.h"
#include "tests/support/values/error_text.h"

namespace sherd::checkpoint {
namespace {

std::string error_of(const std::string& text) {
  return test::error_text<DataError>([&] { parse_strict(text, "f"); });
}

// What nlohmann's own parser makes of the same text.
TEST(StrictJson, MakesTheValuesThatAreWritten) {
  const std::string text =
      R"({"b": [1, -2, 2.5e3, "x\u00e9", true, null, {}, [[]]], "a": {"z": {"y": 18446744073709551615}, "": []}})";
  EXPECT_EQ(parse_strict(text, "f"), nlohmann::json::parse(text));
  EXPECT_EQ(parse_strict_ordered(text, "f").dump(), nlohmann::ordered_json::parse(text).dump());
  for (const std::string scalar : {"1", "\"x\"", "null", "false", "[]", "{}"}) {
    EXPECT_EQ(parse_strict(scalar, "f"), nlohmann::json::parse(scalar));
  }
}

TEST(StrictJson, RefusesWhatIsTooDeepOrTwiceOrNone) {
  EXPECT_EQ(error_of(std::string(32, '[') + std::string(32, ']')), "(no error)");
  EXPECT_EQ(error_of(std::string(33, '[')), "f: JSON nested deeper than 32 levels");
  EXPECT_EQ(error_of(R"({"a": 1, "b": {"a": 1}, "a": 2})"),
            "f: the key \"a\" appears twice in one object");
  EXPECT_EQ(test::error_text<DataError>([] { parse_strict_ordered(R"({"a": 1, "a": 2})", "f"); }),
            "f: the key \"a\" appears twice in one object");
  EXPECT_EQ(error_of("[1, 2"), "f: isn't JSON from byte 6 of 5 on");
  EXPECT_EQ(error_of("[1e999]"), "f: holds a number too large for a double");
}

// Quadratic time would be hours.
TEST(StrictJson, ReadsHundredsOfThousandsOfObjectsAndKeys) {
  constexpr int kCount = 300'000;
  std::string object = "{", list = "[0";
  for (int i = 0; i < kCount; ++i) {
    object += fmt::format("{}\"k{}\":{{}}", i > 0 ? "," : "", i);
    list += ",{}";
  }
  object += "}";
  EXPECT_EQ(parse_strict(object, "f").size(), std::size_t{kCount});
  EXPECT_EQ(parse_strict_ordered(object, "f").size(), std::size_t{kCount});
  EXPECT_EQ(parse_strict(list + "]", "f").size(), std::size_t{kCount} + 1);
  EXPECT_EQ(parse_strict_ordered(list + "]", "f").size(), std::size_t{kCount} + 1);
}

}  // namespace
}  // namespace sherd::checkpoint
