#include "engine/data/utf8.h"

#include <gtest/gtest.h>

#include <string>

namespace sherd::data {
namespace {

TEST(Utf8, DecodesWhatItEncodesForEveryCodePoint) {
  for (char32_t point = 0; point < kNumCodePoints; ++point) {
    std::string text;
    append_utf8(text, point);
    const CodePoint decoded = decode_utf8(as_bytes(text), 0);
    if (point >= 0xd800 && point < 0xe000) {
      ASSERT_EQ(decoded.length, 0) << "a surrogate isn't text";
    } else {
      ASSERT_EQ(decoded.value, point);
      ASSERT_EQ(decoded.length, static_cast<int>(text.size()));
    }
  }
}

TEST(Utf8, EncodesAsTheStandardsExamples) {  // The Unicode Standard 15, table 3-4
  std::string text;
  for (const char32_t point : {0x4d, 0x430, 0x4e8c, 0x10302}) append_utf8(text, point);
  EXPECT_EQ(text, "\x4d\xd0\xb0\xe4\xba\x8c\xf0\x90\x8c\x82");
}

TEST(Utf8, RefusesWhatIsNotUtf8) {
  using namespace std::string_literals;
  for (const std::string& bad :
       {"\x80"s, "\xbf"s, "\xc0\xaf"s, "\xc1\xbf"s, "\xe0\x9f\x80"s, "\xed\xa0\x80"s,
        "\xf0\x8f\xbf\xbf"s, "\xf4\x90\x80\x80"s, "\xf5\x80\x80\x80"s, "\xff"s, "\xc3"s,
        "\xc3\x28"s, "\xe4\xba"s, "\xe4\x28\x8c"s, "\xf0\x90\x8c"s, "\xf0\x90\x28\x82"s}) {
    EXPECT_EQ(decode_utf8(as_bytes(bad), 0).length, 0) << testing::PrintToString(bad);
  }
}

}  // namespace
}  // namespace sherd::data
