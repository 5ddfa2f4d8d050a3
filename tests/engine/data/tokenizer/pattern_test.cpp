#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "core/error.h"
#include "engine/data/tokenizer/pattern/split_pattern.h"
#include "tests/support/values/error_text.h"

namespace sherd::tokenizer {
namespace {

using Parts = std::vector<std::string>;

Parts matches(const std::string& pattern, const std::string& text) {
  const SplitPattern compiled(parse_pattern(pattern, "p"), "p");
  SplitPattern::Scratch scratch;
  SplitPattern::Scan scan(compiled, scratch, text);
  Parts parts;
  std::size_t begin = 0;
  std::size_t end = 0;
  while (scan.next(begin, end)) parts.push_back(text.substr(begin, end - begin));
  return parts;
}

std::string refusal(const std::string& pattern) {
  return test::error_text<DataError>(
      [&] { SplitPattern(parse_pattern(pattern, "file.json"), "file.json"); });
}

// HUGGINGFACE.md, C.4: asked of the library, code point by code point; Unicode 16.0.
TEST(UnicodeClasses, HaveTheSizesOfUnicode16) {
  const auto size = [](const CodePointSet& set) {
    std::size_t count = 0;
    for (const CodePointRange& range : set.ranges()) count += range.last - range.first + 1;
    return count;
  };
  EXPECT_EQ(size(*general_category("L")), 141028u);
  EXPECT_EQ(size(*general_category("N")), 1911u);
  EXPECT_EQ(size(*general_category("M")), 2501u);
  EXPECT_EQ(size(*general_category("P")), 855u);
  EXPECT_EQ(size(*general_category("S")), 8514u);
  EXPECT_EQ(size(white_space()), 25u);
  EXPECT_EQ(general_category("Lu")->ranges().size(), 651u);
  EXPECT_EQ(general_category("Ll")->ranges().size(), 662u);
}

TEST(UnicodeClasses, KnowTheLettersThatUnicode15Lacked) {
  // Garay, Todhri, Cyrillic Tje: new in 16.0.
  for (const char32_t point : {0x10d50, 0x105c0, 0x1c89}) {
    EXPECT_TRUE(general_category("L")->contains(point));
  }
  EXPECT_FALSE(general_category("Q"));
}

TEST(CodePointSet, ItsComplementsComplementIsItself) {
  const CodePointSet set({{5, 9}, {0, 2}, {3, 3}, {0x10ffff, 0x10ffff}});
  EXPECT_EQ(set.ranges(), (std::vector<CodePointRange>{{0, 3}, {5, 9}, {0x10ffff, 0x10ffff}}));
  EXPECT_EQ(set.complement().complement(), set);
  EXPECT_EQ((set | set.complement()).ranges(), (std::vector<CodePointRange>{{0, 0x10ffff}}));
}

TEST(SplitPattern, MatchesByOurTables) {
  EXPECT_EQ(matches(R"(\p{L}+)", "ab1\xe1\xb2\x89z \xf0\x93\x91\xa0."),
            (Parts{"ab", "\xe1\xb2\x89z", "\xf0\x93\x91\xa0"}));
  // U+100041 isn't U+41.
  EXPECT_EQ(matches(R"(\p{L}+)", "a\xf4\x80\x81\x81z"), (Parts{"a", "z"}));
  EXPECT_EQ(matches(R"(\s+(?!\S)|\s+)", "a  \xe3\x80\x80 b"), (Parts{"  \xe3\x80\x80", " "}));
  EXPECT_EQ(matches(R"([^\r\n\p{L}]?\p{L}+)", ",a b\nc"), (Parts{",a", " b", "c"}));
  EXPECT_EQ(matches(R"(\p{N}{1,3})", "12345"), (Parts{"123", "45"}));
  EXPECT_EQ(matches("[a-c]++|.", "abd"), (Parts{"ab", "d"}));
}

TEST(SplitPattern, WithoutCaseTheLongSIsAnS) {
  EXPECT_EQ(matches("(?i:'s|'ll)", "'s 'S '\xc5\xbf 'lL 's"),
            (Parts{"'s", "'S", "'\xc5\xbf", "'lL", "'s"}));
  EXPECT_EQ(matches("'s", "'S"), Parts{});
}

TEST(SplitPattern, TheEndOfALineIsBeforeEveryNewline) {
  EXPECT_EQ(matches(R"(\p{L}+$)", "ab cd\nef\r\ngh"), (Parts{"cd", "gh"}));
}

TEST(SplitPattern, RefusesByNameWhatOtherEnginesReadOtherwise) {
  EXPECT_EQ(refusal(R"(\h+)"), "file.json: the pattern has \\h at byte 1, which isn't supported.");
  EXPECT_EQ(refusal("a{1,3}+"),
            "file.json: the pattern has {n,m} with + or ? at byte 6, which isn't supported.");
  EXPECT_EQ(refusal(R"(\p{Han}+)"),
            "file.json: the pattern has the property \"Han\" at byte 3, which isn't supported.");
  EXPECT_EQ(refusal("[a&&b]"),
            "file.json: the pattern has a class inside a class at byte 2, which isn't supported.");
  EXPECT_EQ(refusal("^a"),
            "file.json: the pattern has an anchor at byte 0, which isn't supported.");
  EXPECT_EQ(refusal("(?<=a)b"),
            "file.json: the pattern has (?<= at byte 0, which isn't supported.");
  EXPECT_EQ(refusal("(?i:\\p{L})"),
            "file.json: the pattern has a class without case at byte 9, which isn't supported.");
  EXPECT_EQ(refusal("a*"), "file.json: the pattern matches the empty string.");
  for (const char* broken :
       {"(", ")", "[", "[]", "a**", "\\", "[b-a]", "{2}", "\\p{L", "(?#x)", "a{", "(*F)"}) {
    EXPECT_NE(refusal(broken), "(no error)") << broken;
  }
}

TEST(SplitPattern, APatternThatBacktracksForEverIsAnError) {
  const SplitPattern compiled(parse_pattern("(?:a|aa|aaa)+b(?=c)", "p"), "p");
  SplitPattern::Scratch scratch;
  const std::string text(2000, 'a');
  SplitPattern::Scan scan(compiled, scratch, text);
  std::size_t begin = 0;
  std::size_t end = 0;
  // Whether the limit or the impossible b comes first is PCRE2's affair; it ends.
  try {
    EXPECT_FALSE(scan.next(begin, end));
  } catch (const DataError& error) {
    EXPECT_NE(std::string(error.what()).find("backtracks"), std::string::npos);
  }
}

}  // namespace
}  // namespace sherd::tokenizer
