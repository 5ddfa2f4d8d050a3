// What a table finds against what PCRE2 finds: the same class tables, two matchers.
#include <gtest/gtest.h>

#include <map>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "engine/data/tokenizer/pattern/split_pattern.h"
#include "engine/data/utf8.h"

namespace sherd::tokenizer {
namespace {

using Spans = std::vector<std::pair<std::size_t, std::size_t>>;

/// The patterns of the vocabularies that tests/reference/tokenizers/folders.py makes.
const std::map<std::string, std::string>& known_patterns() {
  static const std::map<std::string, std::string> patterns = {
      {"gpt2", R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)"},
      {"llama3",
       R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)"},
      {"qwen2",
       R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)"},
      {"qwen35",
       R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)"},
      {"cl100k",
       R"('(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]++[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+)"},
      {"o200k",
       R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+)"},
      {"deepseek_v3",
       R"([!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)"},
      {"ends_of_lines", R"(\s+$)"},
      {"letters", R"(\s?\p{L}+)"},
      {"punctuation", R"([\p{P}\$\+<=>\^~\|`]+)"},
      {"digits", R"(\p{N})"},
      {"three_digits", "[0-9][0-9][0-9]"},
  };
  return patterns;
}

Spans matches(const SplitPattern& pattern, std::string_view text) {
  static SplitPattern::Scratch scratch;
  SplitPattern::Scan scan(pattern, scratch, text);
  Spans spans;
  std::size_t begin = 0;
  std::size_t end = 0;
  while (scan.next(begin, end)) spans.emplace_back(begin, end);
  return spans;
}

struct Both {
  explicit Both(const std::string& source)
      : parsed(parse_pattern(source, "p")),
        table(parsed, "p"),
        pcre2(parsed, "p", SplitPattern::Matcher::kPcre2) {}

  ParsedPattern parsed;
  SplitPattern table;
  SplitPattern pcre2;
};

/// A code point of each combination of the pattern's classes that exists.
std::vector<char32_t> one_of_each_kind(const ParsedPattern& parsed) {
  std::set<char32_t> borders = {0};
  for (const CodePointSet& set : parsed.sets) {
    for (const CodePointRange& range : set.ranges()) {
      borders.insert(range.first);
      if (range.last < kLastCodePoint) borders.insert(range.last + 1);
    }
  }
  std::map<std::vector<bool>, char32_t> first_of;
  for (const char32_t point : borders) {
    if (point >= 0xd800 && point < 0xe000) continue;
    std::vector<bool> sets;
    for (const CodePointSet& set : parsed.sets) sets.push_back(set.contains(point));
    first_of.try_emplace(sets, point);
  }
  std::vector<char32_t> points;
  for (const auto& [sets, point] : first_of) points.push_back(point);
  return points;
}

TEST(Automaton, FindsWhatPcre2FindsInEveryShortTextOfEveryKind) {
  for (const auto& [name, source] : known_patterns()) {
    const Both both(source);
    ASSERT_TRUE(both.table.is_table()) << name;
    ASSERT_FALSE(both.pcre2.is_table());
    const std::vector<char32_t> kinds = one_of_each_kind(both.parsed);
    std::size_t length = 1;
    for (std::size_t texts = kinds.size(); length < 4 || texts * kinds.size() < 120'000; ++length) {
      texts *= kinds.size();
    }
    std::vector<std::size_t> digits(length);
    for (std::size_t place = 0; place < length;) {
      std::string text;
      for (const std::size_t digit : digits) data::append_utf8(text, kinds[digit]);
      ASSERT_EQ(matches(both.table, text), matches(both.pcre2, text)) << name << ": " << text;
      for (place = 0; place < length && ++digits[place] == kinds.size(); ++place) digits[place] = 0;
    }
  }
}

TEST(Automaton, FindsWhatPcre2FindsAroundEveryCodePoint) {
  std::string text;
  for (char32_t point = 0; point <= kLastCodePoint; ++point) {
    if (point >= 0xd800 && point < 0xe000) continue;
    data::append_utf8(text, point);
    text += point % 3 == 0 ? "a" : point % 3 == 1 ? " " : "1";
    data::append_utf8(text, point);
    data::append_utf8(text, point);
  }
  for (const auto& [name, source] : known_patterns()) {
    const Both both(source);
    EXPECT_TRUE(matches(both.table, text) == matches(both.pcre2, text)) << name;
  }
}

TEST(Automaton, FindsWhatPcre2FindsInLongTextsOfAllKinds) {
  std::mt19937 draw(3);
  for (const auto& [name, source] : known_patterns()) {
    const Both both(source);
    std::vector<char32_t> points = one_of_each_kind(both.parsed);
    for (const char c : std::string("  \n\r'sSlLreRE1aA,"))
      points.push_back(static_cast<char32_t>(c));
    for (int i = 0; i < 2000; ++i) {
      std::string text;
      while (text.size() < 60) {
        const char32_t point = points[draw() % points.size()];
        const std::size_t count = draw() % 4 == 0 ? 1 + draw() % 6 : 1;
        for (std::size_t j = 0; j < count; ++j) data::append_utf8(text, point);
      }
      ASSERT_EQ(matches(both.table, text), matches(both.pcre2, text)) << name << ": " << text;
    }
  }
}

/// A pattern over the letters a to c.
std::string random_pattern(std::mt19937& draw, int depth) {
  const std::vector<std::string> classes = {"a", "b", "c", "[ab]", "[^a]", "."};
  const std::vector<std::string> endings = {"",   "",   "",   "*",  "+",     "?",   "*?",
                                            "+?", "??", "*+", "++", "{1,3}", "{2}", "{2,}"};
  std::string text;
  const std::size_t count = 1 + draw() % 3;
  for (std::size_t i = 0; i < count; ++i) {
    const std::string& one_class = classes[draw() % classes.size()];
    const std::string& ending = endings[draw() % endings.size()];
    const std::size_t kind = draw() % 10;
    if (kind < 5 || depth == 0) {
      text += one_class + ending;
    } else if (kind < 6) {
      text += (draw() % 2 == 0 ? "(?=" : "(?!") + one_class + ")";
    } else if (kind < 7) {
      text += "$";
    } else {
      text += "(?:" + random_pattern(draw, depth - 1) + ")" + ending;
    }
  }
  return draw() % 3 == 0 ? text + "|" + random_pattern(draw, 0) : text;
}

TEST(Automaton, FindsWhatPcre2FindsForRandomPatterns) {
  std::mt19937 draw(5);
  int num_tables = 0;
  for (int i = 0; i < 2500; ++i) {
    const std::string source = random_pattern(draw, 2);
    std::unique_ptr<Both> both;
    try {
      both = std::make_unique<Both>(source);
    } catch (const std::exception&) {
      continue;  // it may be empty
    }
    if (!both->table.is_table()) continue;
    ++num_tables;
    for (int j = 0; j < 20; ++j) {
      std::string text;
      for (std::size_t length = draw() % 14; length > 0; --length) text += "abc\n"[draw() % 4];
      ASSERT_EQ(matches(both->table, text), matches(both->pcre2, text)) << source << " on " << text;
    }
  }
  EXPECT_GT(num_tables, 600);
}

TEST(SplitPattern, Pcre2MissesNothingThatItsStartOptimisationsWould) {
  const Both both("(?=x)c?x");
  EXPECT_EQ(matches(both.pcre2, "xnxnx"), (Spans{{0, 1}, {2, 3}, {4, 5}}));
}

TEST(Automaton, LeavesToPcre2WhatATableCantSay) {
  const auto is_table = [](const std::string& source) {
    return SplitPattern(parse_pattern(source, "p"), "p").is_table();
  };
  EXPECT_TRUE(is_table("a(?!b)"));
  EXPECT_TRUE(is_table("a(?=[bc])|a+?c"));
  EXPECT_FALSE(is_table("a(?!bc)"));               // two code points ahead
  EXPECT_FALSE(is_table("a(?!b|c)"));              // nor one in two ways
  EXPECT_FALSE(is_table("(?:ab)++c"));             // possessive, and more than a class
  EXPECT_FALSE(is_table("(?:a?b?)*c"));            // a loop that may take nothing
  EXPECT_FALSE(is_table("a{600}"));                // too many places
  EXPECT_FALSE(is_table("(?:a|b)*a(?:a|b){12}"));  // 2^12 states
}

}  // namespace
}  // namespace sherd::tokenizer
